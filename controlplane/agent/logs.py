"""Lines of a rotating log by cursor: a rotation between two questions loses nothing.

A cursor is `<inode>:<offset>:<check>`: where the next byte is, and a checksum of the file's first bytes: a
new file may get the inode of one that was rotated away.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from controlplane.agent.shards.output import rotated

MAX_BYTES = 256 << 10
MAX_LINES = 5000
MAX_LINE_CHARACTERS = 4000
_MAX_FILES = 101
_CURSOR = re.compile(r"([0-9]{1,20}):([0-9]{1,20}):([0-9a-f]{8})", re.ASCII)
_CHECKED_BYTES = 64


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines, oldest first, and where to go on."""

    lines: list[str]
    cursor: str


def read_log(path: Path, lines: int, cursor: str = "", limit: int = MAX_BYTES) -> Excerpt:
    """The newest `lines`, or with a cursor the oldest ones after it; at most `limit` bytes.

    A line that is still being written waits for its end. A cursor whose file was rotated away goes on with
    the oldest that is left; one that is no cursor reads as empty.
    """
    count = max(0, min(lines, MAX_LINES))
    found = _CURSOR.fullmatch(cursor)
    files = _open_all(path)
    try:
        if found is None:
            return _newest(files, count, limit)
        return _following(files, int(found[1]), int(found[2]), found[3], count, limit)
    finally:
        for file in files:
            file.close()


def _open_all(path: Path) -> list[IO[bytes]]:
    """The files that are there, oldest first; held open, a rotation meanwhile does not matter."""
    files: list[IO[bytes]] = []
    for number in range(_MAX_FILES):
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            files.append(open(os.open(rotated(path, number), flags), "rb", buffering=0))  # noqa: SIM115
        except OSError:
            break
    return files[::-1]


def _newest(files: list[IO[bytes]], count: int, limit: int) -> Excerpt:
    data = b""
    for file in reversed(files):
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - (limit - len(data))))
        data = file.read(limit - len(data)) + data
        if len(data) >= limit or data.count(b"\n") > count:
            break
    whole, _, rest = data.rpartition(b"\n")
    lines = _text(whole) if whole else []
    return Excerpt(lines[len(lines) - min(count, len(lines)) :], _end(files, len(rest)))


def _end(files: list[IO[bytes]], unfinished: int) -> str:
    return _cursor(files[-1], max(0, files[-1].tell() - unfinished)) if files else ""


def _cursor(file: IO[bytes], offset: int) -> str:
    return f"{os.fstat(file.fileno()).st_ino}:{offset}:{_check(file, offset)}"


def _check(file: IO[bytes], offset: int) -> str:
    """Checksum of the file's begin, as far as it was written when the cursor was made."""
    begin = os.pread(file.fileno(), min(offset, _CHECKED_BYTES), 0)
    return f"{zlib.crc32(begin):08x}"


def _following(
    files: list[IO[bytes]], inode: int, offset: int, check: str, count: int, limit: int
) -> Excerpt:
    known = [
        number
        for number, file in enumerate(files)
        if os.fstat(file.fileno()).st_ino == inode and _check(file, offset) == check
    ]
    start, begin = (known[0], offset) if known else (0, 0)
    lines: list[str] = []
    position = f"{inode}:{offset}:{check}"
    for number, file in enumerate(files[start:], start):
        file.seek(begin)
        data = file.read(limit)
        last = number == len(files) - 1
        taken, used = _take(data, count - len(lines), whole=last or len(data) == limit)
        lines += taken
        limit -= used
        position = _cursor(file, begin + used)
        begin = 0
        if used < len(data) or limit <= 0 or len(lines) >= count:
            break
    return Excerpt(lines, position)


def _take(data: bytes, count: int, *, whole: bool) -> tuple[list[str], int]:
    """Up to `count` lines of `data` and the bytes they took; with `whole`, no unfinished one."""
    pieces = data.splitlines(keepends=True)[:count]
    if pieces and whole and not pieces[-1].endswith(b"\n"):
        unfinished = pieces.pop()
        if not pieces and len(unfinished) >= MAX_BYTES:  # no line's end in sight: it is given in parts
            pieces.append(unfinished)
    return _text(b"".join(pieces)), sum(map(len, pieces))


def _text(data: bytes) -> list[str]:
    return [line[:MAX_LINE_CHARACTERS] for line in data.decode("utf-8", "replace").splitlines()]
