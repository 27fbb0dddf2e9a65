"""Asks new and changed cards for their serial, in the background: discovery never waits for a card.

A card that gave the right serial is not asked again while its NQN and addresses stay and it runs. One that
did not answer, or gave another serial, is asked again with growing pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

from controlplane.base.backoff import Backoff, Clock
from controlplane.base.card_cli import ListedPath
from controlplane.base.card_identify import Identified, IdentifyError
from controlplane.model.card_check import Answer
from controlplane.model.cards import CardPath, CardRecord

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
PARALLEL = 4

# What a card is asked by: the same card under another device name need not be asked again.
Key = tuple[str, tuple[CardPath, ...]]


class Inquirer(Protocol):
    """Asks one address who answers there."""

    async def ask(self, path: ListedPath, nqn: str) -> Identified:
        """Raises IdentifyError."""


class _Inquiry:
    """What is known of one card."""

    def __init__(self, now: float) -> None:
        self.first_asked = now
        self.answers: dict[CardPath, Answer] = {}
        self.backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.next_at = now
        self.task: asyncio.Task[None] | None = None


class CardChecker:
    """The answers of the cards of one host, and of others' cards that have the same serial."""

    def __init__(self, inquirer: Inquirer, clock: Clock = time.monotonic) -> None:
        self._inquirer = inquirer
        self._clock = clock
        self._inquiries: dict[Key, _Inquiry] = {}
        self._free = asyncio.Semaphore(PARALLEL)

    def attend(self, records: Iterable[CardRecord]) -> None:
        """Ask those of the listed cards that are due; forget what is not listed or does not run any more."""
        wanted = {_key(record): record.xdp_serial for record in records if record.state == "running"}
        for key in self._inquiries.keys() - wanted.keys():
            inquiry = self._inquiries.pop(key)
            if inquiry.task is not None:
                inquiry.task.cancel()
        now = self._clock()
        for key, serial in wanted.items():
            inquiry = self._inquiries.setdefault(key, _Inquiry(now))
            if inquiry.task is None and now >= inquiry.next_at and not _settled(inquiry, serial):
                inquiry.task = asyncio.create_task(self._ask(key, inquiry), name="card-check")

    async def settle(self, seconds: float) -> None:
        """Wait up to `seconds` for inquiries that are under way: most cards answer at once."""
        tasks = [inquiry.task for inquiry in self._inquiries.values() if inquiry.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def answers(self, record: CardRecord) -> dict[CardPath, Answer]:
        """What the card's addresses said; empty while nothing is known."""
        inquiry = self._inquiries.get(_key(record))
        return dict(inquiry.answers) if inquiry is not None else {}

    def waited(self, record: CardRecord) -> float:
        """Seconds since the card was asked first; 0 for one that is not asked."""
        inquiry = self._inquiries.get(_key(record))
        return self._clock() - inquiry.first_asked if inquiry is not None else 0.0

    async def close(self) -> None:
        """End all inquiries."""
        tasks = [inquiry.task for inquiry in self._inquiries.values() if inquiry.task is not None]
        self._inquiries.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Key, inquiry: _Inquiry) -> None:
        nqn, paths = key
        try:
            for path in paths:
                inquiry.answers[path] = await self._answer(path, nqn)
        finally:
            inquiry.next_at = self._clock() + inquiry.backoff.next()
            inquiry.task = None

    async def _answer(self, path: CardPath, nqn: str) -> Answer:
        async with self._free:
            try:
                found = await self._inquirer.ask(ListedPath(path.transport, path.traddr, path.trsvcid), nqn)
            except IdentifyError as error:
                return Answer(error=str(error))
        return Answer(found.serial, found.multi_controller, found.namespaces)


def _key(record: CardRecord) -> Key:
    return record.nqn, record.paths


def _settled(inquiry: _Inquiry, serial: str) -> bool:
    """Whether every address gave the serial: then there is nothing to ask."""
    return bool(inquiry.answers) and all(answer.serial == serial for answer in inquiry.answers.values())
