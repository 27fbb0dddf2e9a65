"""Files that an operator names: read only where they are files, and never more than is sensible."""

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
