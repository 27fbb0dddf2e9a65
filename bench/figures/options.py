"""What every figure is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """`repeats` of everything, interleaved; `quick` is a trial that is small enough for a busy machine.

    `directory` is an empty folder for sockets and logs; `peers` is where the peers are installed, `spdk` a
    built source tree of SPDK (None: without it). `caches`, `sizes` in bytes and `batches` narrow what is
    measured (None: all).
    """

    directory: Path
    repeats: int
    quick: bool
    trace: Path | None
    requests: int | None
    peers: Path
    spdk: Path | None
    caches: Sequence[str] | None
    sizes: Sequence[int] | None
    batches: Sequence[int] | None
