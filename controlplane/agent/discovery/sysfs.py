"""Reading /sys and /proc: small text files of which any may be missing or unreadable."""

from __future__ import annotations

from pathlib import Path

_LIMIT = 1 << 16


def read_text(path: Path) -> str:
    """The stripped text of a file; empty where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_number(path: Path, default: int = 0) -> int:
    """The whole number in a file, decimal or 0x…; `default` where there is none."""
    text = read_text(path)
    try:
        return int(text, 0)
    except ValueError:
        return default


def entries(path: Path) -> list[Path]:
    """What lies in a directory, by name; nothing where it can't be listed."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []
