"""The output of a shard: a rotating log and its last words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

LAST_OUTPUT_BYTES = 4096
LAST_OUTPUT_LINES = 40
_BLOCK = 64 * 1024


class RotatingLog:
    """Appends bytes to `path`; past `limit` bytes the file becomes `path.1`, and so on up to `files` files.

    A write that fails (full disk, directory gone) loses its bytes, counted in `lost`, and never raises: an
    engine must not be stopped by its log.
    """

    def __init__(self, path: Path, limit: int, files: int) -> None:
        self._path = path
        self._limit = limit
        self._files = files
        self._descriptor = -1
        self._size = 0
        self._tail = bytearray()
        self.lost = 0

    def write(self, data: bytes) -> None:
        """Append, rotating first where `data` would not fit any more."""
        self._tail += data
        del self._tail[:-LAST_OUTPUT_BYTES]
        try:
            self._open()
            if self._size and self._size + len(data) > self._limit:
                self._rotate()
            written = os.write(self._descriptor, data)
            self._size += written
            self.lost += len(data) - written
        except OSError:
            self.lost += len(data)
            self.close()

    def last_output(self) -> str:
        """The last lines, at most 4 KiB."""
        lines = bytes(self._tail).decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-LAST_OUTPUT_LINES:])

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o600)
            self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        if self._files == 1:
            self._path.unlink(missing_ok=True)
        for number in range(self._files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(rotated(self._path, number - 1), rotated(self._path, number))
        self._open()


def rotated(path: Path, number: int) -> Path:
    """The file of that age; 0 is the current one."""
    return path.with_name(f"{path.name}.{number}") if number else path


def last_lines(path: Path, lines: int, limit: int, files: int = 100) -> list[str]:
    """The last `lines` lines over the rotated files, oldest first, of at most `limit` bytes together.

    Files that are missing or rotated away meanwhile are left out.
    """
    data = b""
    for number in range(files):
        part = _end_of(rotated(path, number), limit - len(data))
        if part is None:
            break
        data = part + data
        if len(data) >= limit or data.count(b"\n") > lines:
            break
    found = data.decode("utf-8", "replace").splitlines()
    return found[-lines:] if lines > 0 else []


def _end_of(path: Path, limit: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - limit))
        return file.read(limit)


def drain_pipe(descriptor: int) -> Iterator[bytes]:
    """What lies in a non-blocking pipe now; an empty block is its end."""
    while True:
        try:
            data = os.read(descriptor, _BLOCK)
        except BlockingIOError:
            return
        yield data
        if not data:
            return
