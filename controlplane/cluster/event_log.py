"""Collects what this host decided and writes it to the cluster's list of events.

Noting an event never waits and never fails: it goes into a bounded queue that a cycle of its own writes to
etcd. What can't be written stays in the queue; when it is full, the oldest are dropped and that is told.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.link import EtcdLink
from controlplane.model.events import EventKind, Note, Repeats
from controlplane.store.errors import StoreError
from controlplane.store.events import append_events

QUEUE_LENGTH = 128
BATCH = 32

log = get_logger("events")


class EventSink(Protocol):
    """Where the parts of the service note what they decided."""

    def note(self, kind: EventKind, subject: str, text: str) -> None:
        """Note one event about a card (by serial) or a host (by name); never waits, never fails."""


class EventLog:
    """One host's events. `wall_clock` gives Unix seconds."""

    def __init__(self, host: str, link: EtcdLink, wall_clock: Callable[[], float] = time.time) -> None:
        self._host = host
        self._link = link
        self._wall_clock = wall_clock
        self._queue: deque[Note] = deque()
        self._repeats = Repeats()
        self._dropped = 0
        self._said = OnChange()
        self.wake = asyncio.Event()

    def note(self, kind: EventKind, subject: str, text: str) -> None:
        """Note one event; one that repeats the last of its kind about its subject is left out."""
        note = Note(kind, subject, text, self._wall_clock())
        if not self._repeats.is_news(note):
            return
        if len(self._queue) == QUEUE_LENGTH:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(note)
        self.wake.set()

    async def cycle(self) -> None:
        """Write what is queued. Raises nothing of etcd's."""
        while self._queue:
            batch, dropped = list(itertools.islice(self._queue, BATCH)), self._dropped
            told = [self._loss(dropped)] if dropped else []
            try:
                await append_events(self._link.client, self._host, [*told, *batch])
            except (StoreError, RequestError) as error:
                if self._said.changed(type(error).__name__):
                    log.warning("events not written", reason=str(error), queued=len(self._queue))
                return
            self._said.changed("")
            self._dropped -= dropped
            self._take_off(batch)

    def _loss(self, dropped: int) -> Note:
        text = f"{dropped} older events of {self._host} were dropped: etcd did not take them in time"
        return Note("alarm", self._host, text, self._wall_clock())

    def _take_off(self, batch: list[Note]) -> None:
        """Take the written ones off; more may have been noted, or dropped, meanwhile."""
        done = set(map(id, batch))
        while self._queue and id(self._queue[0]) in done:
            self._queue.popleft()
