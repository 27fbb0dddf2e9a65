"""One service for each host: a second one on the same state would take over its socket and start its etcd."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = "lock"


class AlreadyRunsError(Exception):
    """Another service has this host's state; the message says what to do."""


@contextlib.contextmanager
def only_service(state_dir: Path) -> Iterator[None]:
    """Hold the state directory until the end, however that comes. Raises AlreadyRunsError, or OSError."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunsError(
            f"another awide-cluster runs with {state_dir}: stop that one first, or give this host an "
            "AWC_STATE_DIR of its own"
        ) from None
    else:
        yield
    finally:
        os.close(lock)
