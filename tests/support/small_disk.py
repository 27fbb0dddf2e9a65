"""A small file system that a test can fill. Needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


class Disk:
    """A file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert os.statvfs(self.path).f_bavail == 0

    def free(self) -> None:
        (self.path / "filling").unlink()


@contextlib.contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[Disk]:
    """A file system in memory at `path`."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)
