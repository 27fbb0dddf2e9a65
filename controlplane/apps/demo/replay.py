"""The replay: an `akv-bench replay` process whose JSON lines are read as they come."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from controlplane.apps.demo.errors import DemoError, NotInTimeError
from controlplane.apps.demo.processes import Child, python_module
from controlplane.apps.demo.requests import Served
from controlplane.apps.demo.watches import Watch

# Lines that may wait to be judged; beyond them the replay waits too.
_BACKLOG = 10_000
# Between two looks at what a wait is for, which may be calls to the programs that are watched.
_TURN_SECONDS = 0.025


def bench(*arguments: str) -> list[str]:
    """Command line of `akv-bench`."""
    return python_module("bench.main", *arguments)


class Replay:
    """A running replay. `pump` feeds what it reports to the watches, in order, each request once."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.child = Child(name, bench("replay", "--json", *arguments), log, read_output=True)
        self.watches: list[Watch] = []
        self.summary: dict[str, Any] | None = None
        self._lines: queue.Queue[bytes | None] = queue.Queue(_BACKLOG)
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()

    def pump(self, until: Callable[[], bool], seconds: float, what: str) -> None:
        """Judge requests until `until` holds; raises NotInTimeError after `seconds`, DemoError when the
        replay ended."""
        end = time.monotonic() + seconds
        while not until():
            if self._ended:
                self.child.check()
                raise DemoError(f"{self.child.name} ended early; its log ends:\n{self.child.tail()}")
            if time.monotonic() > end:
                raise NotInTimeError(f"not within {seconds:.0f} s: {what}")
            self.turn()

    def turn(self) -> None:
        """Judge what comes within a moment."""
        end = time.monotonic() + _TURN_SECONDS
        with contextlib.suppress(queue.Empty):
            while not self._ended and (left := end - time.monotonic()) > 0:
                self._take(self._lines.get(timeout=left))

    def finish(self, seconds: float = 20.0) -> dict[str, Any]:
        """Tell it to end, judge the rest, and return its summary."""
        self.child.interrupt()
        return self.wait_summary(seconds)

    def wait_summary(self, seconds: float) -> dict[str, Any]:
        """Judge until it ends by itself; its summary. Raises DemoError where it fails."""
        end = time.monotonic() + seconds
        while not self._ended:
            if time.monotonic() > end:
                raise NotInTimeError(f"{self.child.name} did not end within {seconds:.0f} s")
            self.turn()
        self.child.wait(5.0)
        if self.summary is None:
            raise DemoError(f"{self.child.name} ended without a summary; its log ends:\n{self.child.tail()}")
        return self.summary

    def _take(self, line: bytes | None) -> None:
        if line is None:
            self._ended = True
            return
        record = json.loads(line)
        if record["event"] == "summary":
            self.summary = record
        elif record["event"] == "request":
            served = Served.of(record)
            for watch in tuple(self.watches):
                watch.feed(served)

    def _read(self) -> None:
        # A killed replay leaves half a line: only whole ones count.
        with contextlib.suppress(ValueError):
            for line in self.child.output:
                if line.endswith(b"\n"):
                    self._lines.put(line)
        self._lines.put(None)
