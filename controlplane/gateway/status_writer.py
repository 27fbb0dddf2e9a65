"""Writes the status file on every change and every two seconds, more seldom while nothing changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from akv.v1 import dataplane_pb2

from controlplane.base.logging import get_logger
from controlplane.base.text_file import write_atomically
from controlplane.gateway.dataplane import DataplaneClient, DataplaneError
from controlplane.gateway.status import Picture, render

log = get_logger("status")

EVERY_SECONDS = 2.0
# After so many answers in which nothing was new. A process that does nothing has its memory far away: a call
# costs an idle dataplane some 20 ms of CPU time, and is most of what it uses.
QUIET_ANSWERS = 5
IDLE_SECONDS = 5.0
BETWEEN_SECONDS = 0.1

Painter = Callable[[dataplane_pb2.GetStatusResponse | None], Picture]
Listener = Callable[[dataplane_pb2.GetStatusResponse | DataplaneError], None]


class MetricsAddressError(Exception):
    """The address of `metrics` can't be had; the text names it, the reason and the remedy."""


class Pace:
    """How long it may be until the dataplane is asked again."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] | None = None
        self._quiet = 0

    def after(self, answer: dataplane_pb2.GetStatusResponse | None) -> float:
        """Seconds, after this answer; None is no answer."""
        told = None if answer is None else _content(answer)
        self._quiet = self._quiet + 1 if told is not None and told == self._last else 0
        self._last = told
        return IDLE_SECONDS if self._quiet >= QUIET_ANSWERS else EVERY_SECONDS


def _content(answer: dataplane_pb2.GetStatusResponse) -> tuple[object, ...]:
    """All but what grows by the asking itself."""
    counters = {name: value for name, value in answer.counters.items() if name != "busy_ns"}
    return counters, list(answer.cards), answer.plan_sequence


class StatusWriter:
    """`paint` turns the dataplane's answer (or None) into the picture of the moment.

    `heard` is told each answer, or why there is none, before it is painted.
    """

    def __init__(self, path: Path, dataplane: DataplaneClient, paint: Painter, heard: Listener) -> None:
        self._path = path
        self._dataplane = dataplane
        self._paint = paint
        self._heard = heard
        self._pace = Pace()
        self._changed = asyncio.Event()
        self._write_error: str | None = None
        self.text = ""

    def touch(self) -> None:
        """Something changed: write soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write for ever; ends by cancellation. A file that can't be written is told once and tried on."""
        while True:
            self._changed.clear()
            answer = await self._ask()
            await self._write(answer)
            await asyncio.sleep(BETWEEN_SECONDS)
            try:
                async with asyncio.timeout(self._pace.after(answer)):
                    await self._changed.wait()
                self._pace = Pace()
            except TimeoutError:
                pass

    async def _write(self, answer: dataplane_pb2.GetStatusResponse | None) -> None:
        self.text = render(self._paint(answer))
        try:
            await asyncio.to_thread(write_atomically, self._path, self.text, 0o644)
        except OSError as error:
            self._report(f"{self._path}: {error.strerror}")
        else:
            self._report(None)

    async def _ask(self) -> dataplane_pb2.GetStatusResponse | None:
        try:
            answer = await self._dataplane.get_status()
        except DataplaneError as error:
            self._heard(error)
            return None
        self._heard(answer)
        return answer

    def _report(self, error: str | None) -> None:
        if error == self._write_error:
            return
        self._write_error = error
        if error is None:
            log.info("Status file is written again", path=str(self._path))
        else:
            log.error("Status file can't be written", error=error)


def unix_now() -> float:
    """Wall-clock seconds, for display alone."""
    return time.time()
