"""Waiting for a condition inside an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.procs import PATIENCE


async def eventually(probe: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Return when `probe` is true; AssertionError after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while not probe():  # noqa: ASYNC110 - the condition belongs to code that has no event for it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None
