"""Reads the parts of a node again and again, each in a thread of its own.

A driver or a network file system that hangs keeps its own part waiting and nothing else: neither the other
parts nor the heartbeats nor the end of the program.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controlplane.base.logging import get_logger

STUCK_SECONDS = 30.0

T = TypeVar("T")

log = get_logger("discovery")


def in_thread(read: Callable[[], T]) -> asyncio.Future[T]:
    """Run `read` in a thread that the end of the program does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(_retrieve)  # who asked may be cancelled before the answer comes

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, error = None, None
        try:
            value = read()
        except (OSError, ValueError) as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, daemon=True, name="discovery").start()
    return future


def _retrieve(future: asyncio.Future[T]) -> None:
    if not future.cancelled():
        future.exception()


@dataclass(slots=True)
class Part:
    """One part: how it is read (in a thread), what is done with it (in the loop), every how many seconds."""

    name: str
    read: Callable[[], Any]
    apply: Callable[[Any], None]
    every: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Sampler:
    """All parts. `trouble` gets a part's name and what is wrong with it, empty when it is well again."""

    def __init__(self, parts: Sequence[Part], trouble: Callable[[str, str], None]) -> None:
        self._parts = {part.name: part for part in parts}
        self._trouble = trouble

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts.values():
                group.create_task(self._keep(part), name=f"sample-{part.name}")

    async def first(self, seconds: float) -> None:
        """Return when every part was read once, or after `seconds`."""
        waits = [asyncio.create_task(part.answered.wait()) for part in self._parts.values()]
        await asyncio.wait(waits, timeout=seconds)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def soon(self, name: str) -> None:
        """Read a part now and not at its next turn."""
        self._parts[name].wake.set()

    async def _keep(self, part: Part) -> None:
        while True:
            part.wake.clear()
            await self._read(part)
            part.answered.set()
            try:
                async with asyncio.timeout(part.every):
                    await part.wake.wait()
            except TimeoutError:
                continue

    async def _read(self, part: Part) -> None:
        future = in_thread(part.read)
        await asyncio.wait({future}, timeout=STUCK_SECONDS)
        if not future.done():
            log.warning("Part of the node does not answer", part=part.name, seconds=STUCK_SECONDS)
            self._trouble(part.name, f"{part.name}: no answer for {STUCK_SECONDS:g} s")
        try:
            value = await future
        except (OSError, ValueError) as error:
            self._trouble(part.name, f"{part.name} can't be read: {error}")
            return
        self._trouble(part.name, "")
        part.apply(value)
