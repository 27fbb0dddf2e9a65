"""The agent's own state: one agent for each state directory, and an incarnation that only grows."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Self

from controlplane.agent.files import DocumentError, read_document, write_document
from controlplane.base.logging import get_logger

LOCK, FILE = "agent.lock", "incarnation.json"
_FULL = {errno.ENOSPC, errno.EDQUOT}

log = get_logger("agent")


class StateError(Exception):
    """The state directory can't be used; the message says what is wrong and what to do."""


class AgentState:
    """The locked state directory. A context manager; the lock ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StateError(
                f"state_dir: {path} can't be used: {error.strerror}; change state_dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StateError(
                f"state_dir: another akv-agent runs with {path}; stop it, or choose another state_dir"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def shards(self) -> Path:
        """Where the shards' records are."""
        return self.path / "shards"

    @property
    def waiting(self) -> Path:
        """Where the starts are on record that wait for their weights."""
        return self.path / "waiting"

    @property
    def log(self) -> Path:
        """The agent's own log, so that it can be asked for from afar."""
        return self.path / "agent.log"

    def next_incarnation(self, wall: float | None = None) -> int:
        """Above every earlier one: by the record, and by the clock when the record was lost. StateError.

        Where the disk is full the clock is enough, if it is ahead of the record: an agent that is started
        anew can't start shards then, and yet has to speak for those that run.
        """
        path = self.path / FILE
        last = 0
        try:
            value = (read_document(path) or {}).get("incarnation", 0)
            last = value if isinstance(value, int) else 0
        except DocumentError as error:
            log.warning("Incarnation lost, the clock is used", error=str(error))
        now = int(time.time() if wall is None else wall)
        incarnation = max(last + 1, now)
        try:
            write_document(path, {"incarnation": incarnation})
        except OSError as error:
            if error.errno not in _FULL or now <= last:
                raise StateError(f"{path} can't be written: {error.strerror}; free space there") from error
            log.warning("Incarnation not written, the clock is used", path=str(path), error=error.strerror)
        return incarnation
