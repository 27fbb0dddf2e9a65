"""Repeats work at an interval, towards deadlines rather than after pauses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger

log = get_logger("cycle")


async def run_cycles(
    name: str,
    work: Callable[[], Awaitable[None]],
    interval: Callable[[], float],
    wake: asyncio.Event,
    clock: Clock = time.monotonic,
) -> None:
    """Run `work` every `interval()` seconds, or at once when `wake` is set, until cancelled.

    A cycle that takes longer than its interval is logged once, until one is in time again; the next
    begins at once.
    """
    late = False
    while True:
        began = clock()
        wake.clear()
        await work()
        left = interval() - (clock() - began)
        if (left < 0) != late:
            late = left < 0
            if late:
                log.warning(
                    "cycle overran", cycle=name, seconds=round(clock() - began, 3), interval=interval()
                )
        try:
            async with asyncio.timeout(max(0.0, left)):
                await wake.wait()
        except TimeoutError:
            continue


class OnChange:
    """Lets a text through when it differs from the last one: what repeats is not logged again."""

    def __init__(self) -> None:
        self._last = ""

    def changed(self, text: str) -> bool:
        """Whether `text` is new; an empty one means that all is well again."""
        if text == self._last:
            return False
        self._last = text
        return True
