"""What the control process keeps in `state_dir`: the pinned cluster, and a lock against a second process."""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import Self

from controlplane.base.text_file import write_atomically

PIN_FILE = "cluster_uuid"
LOCK_FILE = "control.lock"


class StateError(Exception):
    """`state_dir` can't be used; the message says what is wrong and what to do."""


class StateDir:
    """The open and locked directory. A context manager; the lock ends with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = self._take_lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def pinned_uuid(self) -> str | None:
        """The cluster that this gateway belongs to; None before the first answer. Raises StateError."""
        path = self._path / PIN_FILE
        try:
            text = path.read_text(encoding="ascii").strip()
            return str(uuid.UUID(text))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{path} can't be read: {error.strerror}; check its permissions") from error
        except ValueError as error:
            raise StateError(
                f"{path} does not hold a cluster's uuid; remove it to pin the cluster that answers next"
            ) from error

    def pin(self, cluster_uuid: str) -> None:
        """Write the pinned cluster (0600) so that it is there in whole or not at all. Raises StateError."""
        path = self._path / PIN_FILE
        try:
            write_atomically(path, f"{cluster_uuid}\n", 0o600, durable=True)
        except OSError as error:
            raise StateError(f"{path} can't be written: {error.strerror}") from error

    def _take_lock(self) -> int:
        path = self._path / LOCK_FILE
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(
                f"state_dir: {path} can't be opened: {error.strerror}; change state_dir"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StateError(
                f"state_dir: another akv-gateway runs with {self._path}; stop it, or choose another state_dir"
            ) from None
        return lock
