"""Files that operators and other programs see: read with bounds, and replaced in whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotReadableError(ValueError):
    """The file is of no kind, or of no size, that is read; the message says why and what to do."""


def read_bounded(path: Path, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes. Raises OSError, NotReadableError.

    A pipe would keep a program waiting at its start without a word, and a device has no end.
    """
    # O_NONBLOCK: the opening of a pipe would already wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotReadableError("is a pipe or a device; name a regular file")
        data = file.read(limit + 1)
        if len(data) > limit:
            size = os.fstat(descriptor).st_size
            raise NotReadableError(f"has {size} bytes; at most {limit} are read: is it the right file?")
    return data


def write_atomically(path: Path, text: str, mode: int, *, durable: bool = False, writer: str = "") -> None:
    """Replace the file by one with `text`; a reader sees the old or the new one in whole. Raises OSError.

    What could not be written in whole is removed again: on a full disk it would keep the last blocks. Where
    several processes may write the file, `writer` tells them apart.
    """
    temporary = path.with_name(f".{path.name}.{writer}.new" if writer else f".{path.name}.new")
    try:
        _write(temporary, text, mode, durable=durable)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _write(path: Path, text: str, mode: int, *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
        if durable:
            file.flush()
            os.fsync(descriptor)
