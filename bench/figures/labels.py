"""What tables and plots of a figure's record have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The figures that have a plot.
DRAWN = ("path", "peers", "initiator")


def unique(rows: Sequence[dict[str, Any]], label: str) -> list[Any]:
    """The values of a label, in the order of the rows."""
    return list(dict.fromkeys(row[label] for row in rows))


def size_text(size: int) -> str:
    """A block size for a table's row or a plot's tick."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
