"""A run is ended by SIGINT or SIGTERM."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While it is entered, in the main thread, these signals are noted; `wait` is cut short by them.

    No `threading.Event`: its `set` takes a lock that the interrupted `wait` may hold, for ever then.
    """

    def __init__(self) -> None:
        self._came = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    @property
    def came(self) -> bool:
        """Whether there was a signal."""
        return self._came

    def wait(self, seconds: float) -> bool:
        """Wait `seconds` at most; whether there was a signal."""
        if not self._came:
            select.select([self._reader], [], [], seconds)
        return self._came

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        with suppress(BlockingIOError):  # full: it is readable
            os.write(self._writer, b"\0")
