"""Calls that a signal's handler ends with an exception."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from integration.client import Client
from tests.support.procs import wait_until


class InterruptedCallError(Exception):
    """What the handler raises."""


@contextlib.contextmanager
def interrupted(
    client: Client, ready: Callable[[], object], what: str, then: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """The call inside gets a signal when `ready()` is true, and ends by what its handler raises.

    It waits then: in the middle of the client's own work the signal would cost the session.
    `then` follows at once, perhaps before the handler runs.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        raise InterruptedCallError

    def ready_and_waiting() -> object:
        with client._lock:
            return ready()

    def interrupt() -> None:
        wait_until(ready_and_waiting, what)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        then()

    former = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(InterruptedCallError):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, former)
