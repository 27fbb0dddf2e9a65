"""Running several things until one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all until one ends, cancel the others, and raise what the first one raised.

    Not a TaskGroup: in Python 3.11 that loses a cancellation which comes together with a task's error.
    """
    tasks = [asyncio.create_task(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()
