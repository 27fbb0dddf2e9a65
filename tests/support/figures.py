"""What a figure of docs/performance.md is told in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.figures.options import Options


def figure_options(directory: Path, **more: Any) -> Options:
    """One repeat of everything, but for what `more` says."""
    fixed: dict[str, Any] = {
        "directory": directory,
        "repeats": 1,
        "quick": False,
        "trace": None,
        "requests": None,
        "peers": directory,
        "spdk": None,
        "caches": None,
        "sizes": None,
        "batches": None,
    }
    return Options(**(fixed | more))
