"""Why an etcd member ended: its last words out of its log, and what kind of fault they tell of.

The words carry no times, addresses of memory or process ids, so that a member that fails in the same way
again and again says the same thing each time.
"""

from __future__ import annotations

import json
import os
import re
from enum import Enum
from pathlib import Path

from controlplane.cluster.etcd_runner import EtcdExit

_TAIL_BYTES = 256 << 10
_FATAL = frozenset({"fatal", "panic", "dpanic"})
_MAX_WORDS = 400
_VARYING = re.compile(r"\b0x[0-9a-f]+\b")
_DISK = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_PANIC, _FATAL_ERROR = "panic: ", "fatal error: "
# Go's words for memory that is mapped from a file and can't be read: the database was cut, or the disk fails.
_FAULT = "unexpected fault address"
# What 3.5.30 says of a torn, truncated, foreign or rolled back write-ahead log, snapshot or database, when
# it does not panic.
_DATA = re.compile(
    r"\bwalpb: |\bwal: |\bsnap: |failed to (open|read|recover|load|find)[^|]*\b(wal|snapshot|backend|db)\b"
    rf"|{_FAULT}",
    re.IGNORECASE,
)
LOW_DISK_BYTES = 1 << 20


class EndKind(Enum):
    """What an end tells."""

    DISK_FULL = "its disk is full"
    BAD_DATA = "its data can't be used"
    OTHER = "other"


def judge_end(ended: EtcdExit, free_bytes: int) -> EndKind:
    """Sort an end. A full disk looks like damaged data in some places, so it is asked about first."""
    if _DISK.search(ended.last_words) or (ended.code > 0 and free_bytes < LOW_DISK_BYTES):
        return EndKind.DISK_FULL
    if ended.code > 0 and (ended.last_words.startswith(_PANIC) or _DATA.search(ended.last_words)):
        return EndKind.BAD_DATA
    return EndKind.OTHER


def log_size(path: Path) -> int:
    """Where the log ends now; 0 when there is none yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_words(log_file: Path, since: int, output: Path) -> str:
    """The reason for the end that just came: the last fatal entry of the log after `since`, or a panic.

    `output` has what etcd printed beside its log. Empty when neither tells anything.
    """
    return _clean(_last_fatal(_tail(log_file, since)) or _panic(_tail(output, 0)))


def _tail(path: Path, since: int) -> str:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = since if since <= end else 0  # rotated meanwhile
            file.seek(max(start, end - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _last_fatal(text: str) -> str:
    found = ""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") in _FATAL:
            told = ": ".join(str(entry[key]) for key in ("msg", "error") if entry.get(key))
            found = told if entry["level"] == "fatal" else f"{_PANIC}{told}"
    return found


def _panic(text: str) -> str:
    """A panic's own line; else the first line that was printed, as of a wrong flag."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith((_PANIC, _FATAL_ERROR))]
    if not told:
        return next((line for line in lines if not line.startswith("{")), "")
    fault = next((line for line in lines if line.startswith(_FAULT)), "")
    return f"{told[-1]} ({fault})" if fault and told[-1].startswith(_FATAL_ERROR) else told[-1]


def _clean(text: str) -> str:
    return _VARYING.sub("0x…", text)[:_MAX_WORDS]
