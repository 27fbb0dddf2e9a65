"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Result = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `name` is stable; `remedy` says what to do and is empty when all is well."""

    name: str
    result: Result
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", text)


def skipped(name: str, text: str) -> Finding:
    """Not looked at, and why."""
    return Finding(name, "skipped", text)


def warning(name: str, text: str, remedy: str) -> Finding:
    """The host can join, but something will be slow, or fail later."""
    return Finding(name, "warning", text, remedy)


def failed(name: str, text: str, remedy: str) -> Finding:
    """The host can't join, or would harm the cluster."""
    return Finding(name, "failed", text, remedy)
