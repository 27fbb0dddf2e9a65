"""A wall clock that jumps, in processes of a test alone: the machine's clock is never touched.

A small library is preloaded into them, so that Python, gRPC and OpenSSL in one process see the same clock.
Programs that don't ask libc (etcd and Prometheus, which are written in Go) keep the machine's.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("skewed_clock.c")
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class SkewedClock:
    """The wall clock of the processes that are started with `environment`."""

    file: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """For the processes; the clock is right at first."""
        if not self.file.exists():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.set(0)
        return {"LD_PRELOAD": str(_library()), "AKV_TEST_CLOCK": str(self.file)}

    def set(self, seconds: float) -> None:
        """Let the clock be wrong by so much, at once, in processes that run too."""
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(round(seconds * _NANOSECONDS).to_bytes(8, "little", signed=True))


@functools.cache
def _library() -> Path:
    """Compiled once for a run of the tests."""
    directory = tempfile.TemporaryDirectory(prefix="akv-clock-")
    _kept.append(directory)
    library = Path(directory.name) / "skewed_clock.so"
    flags = ["-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(library), "-ldl"], check=True, timeout=60)
    return library


# Removed when the tests end.
_kept: list[tempfile.TemporaryDirectory[str]] = []
