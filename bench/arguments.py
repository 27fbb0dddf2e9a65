"""Kinds of command-line arguments that several programs take."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number of at least 1. Raises ArgumentTypeError, or ValueError for what is no number."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def sizes(text: str) -> list[int]:
    """Numbers of at least 1 with a binary unit or none, as in `256K,1M`. Raises as `positive` does."""
    return [_size(part) for part in text.split(",")]


def _size(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return positive(text if factor == 1 else text[:-1]) * factor
