"""A watch that resumes by itself on another endpoint, with nothing lost and nothing doubled.

A member that is suspended keeps its connection open and says nothing, so the watch asks for its progress
every half second and gives a member up that is silent for 1.5 s. When history is missing (compacted), or
the store is not the one that was watched (another cluster id, a revision that stays behind), the consumer
is told to read everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import grpc
from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Backoff
from controlplane.base.logging import get_logger
from controlplane.store.client import EtcdClient
from controlplane.store.endpoints import HAS_LEADER, Endpoint
from controlplane.store.errors import Action, RequestRefused, judge
from controlplane.store.kv import prefix_end

PROGRESS_SECONDS = 0.5
DEAD_SECONDS = 1.5
QUEUE_ITEMS = 256
_ALL_WATCHES = -1

log = get_logger("etcd-watch")


@dataclass(frozen=True, slots=True)
class Change:
    """One key that was written (`value`) or deleted (`value` None) at `revision`."""

    key: bytes
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes in the order of their revisions; those of one revision and one prefix are never torn apart."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Reread:
    """Changes were missed or the store is another one: read everything; later changes follow this item."""

    reason: str


WatchItem = Changes | Reread


class _SessionLost(Exception):
    """The stream to one member ended; `dead` when the member said nothing, rather than "no"."""

    def __init__(self, reason: str, *, dead: bool = False) -> None:
        super().__init__(reason)
        self.dead = dead


class _HistoryLost(Exception):
    """The stream can't go on where it was: a re-read is due."""


class Watch:
    """An asynchronous iterator of WatchItem over the keys below some prefixes.

    `start_revision` is the first revision of interest, usually that of a snapshot + 1. Use it with `async
    with`. The queue is bounded: a slow consumer slows the stream down, and loses nothing. Iterating raises
    RequestRefused when etcd refuses to be watched (permissions).
    """

    def __init__(self, client: EtcdClient, prefixes: Sequence[bytes], start_revision: int) -> None:
        self._client = client
        self._prefixes = tuple(prefixes)
        # The first revision of each prefix that was not delivered yet; None: start at the present.
        self._next: list[int | None] = [start_revision] * len(self._prefixes)
        self._queue: asyncio.Queue[WatchItem | RequestRefused] = asyncio.Queue(QUEUE_ITEMS)
        self._cluster_id: int | None = None
        self._reread: str | None = None
        self._heard = client.clock()
        self._lost_since: float | None = None
        self._behind_since: float | None = None
        self._waiting: set[int] = set()
        self._backoff = Backoff(0.05, 0.5, uniform=client.uniform)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._run(), name="etcd-watch")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[WatchItem]:
        return self._items()

    async def _items(self) -> AsyncIterator[WatchItem]:
        while True:
            item = await self._queue.get()
            if isinstance(item, RequestRefused):
                raise item
            yield item

    async def _run(self) -> None:
        while True:
            origin = self._client.pool.candidates()[0]
            try:
                await self._session(origin)
            except _HistoryLost as lost:
                self._restart(str(lost), origin)
            except _SessionLost as lost:
                self._move_on(lost, origin)
            except RequestRefused as refused:
                await self._queue.put(refused)
                return
            await asyncio.sleep(self._backoff.next())

    async def _session(self, origin: Endpoint) -> None:
        """Watch on one member, over a connection of its own, until that fails."""
        endpoint = Endpoint(origin.address, self._client.credentials)
        call = endpoint.watch.Watch(metadata=HAS_LEADER)
        pinger: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(DEAD_SECONDS):
                await self._create(call)
            pinger = asyncio.create_task(_ask_progress(call))
            while True:
                async with asyncio.timeout(DEAD_SECONDS):
                    response = await call.read()
                if not isinstance(response, pb.WatchResponse):
                    raise _SessionLost(f"stream ended: {await call.details()}")
                await self._handle(response, origin)
        except TimeoutError:
            raise _SessionLost(f"silent for {DEAD_SECONDS} s", dead=True) from None
        except grpc.aio.AioRpcError as error:
            raise _meaning(error) from None
        finally:
            call.cancel()
            await _end(pinger)
            await endpoint.channel.close()

    async def _create(self, call: grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]) -> None:
        self._waiting = set(range(1, len(self._prefixes) + 1))
        self._behind_since = None
        for watch_id, (prefix, start) in enumerate(zip(self._prefixes, self._next, strict=True), start=1):
            create = pb.WatchCreateRequest(
                key=prefix, range_end=prefix_end(prefix), start_revision=start or 0, watch_id=watch_id
            )
            await call.write(pb.WatchRequest(create_request=create))

    async def _handle(self, response: pb.WatchResponse, origin: Endpoint) -> None:
        if origin.address not in self._client.endpoints:
            raise _SessionLost("endpoint was taken out of use")
        self._heard = self._client.clock()
        self._check_store(response.header, self._heard)
        if response.canceled:
            raise _cancelled(response)
        if response.created:
            await self._created(response, origin)
        elif response.events:
            await self._deliver(response)
        else:
            self._progress(response)

    def _check_store(self, header: pb.ResponseHeader, now: float) -> None:
        """Raise when this is not the store that was watched so far."""
        if self._cluster_id is not None and header.cluster_id != self._cluster_id:
            before, self._cluster_id = self._cluster_id, header.cluster_id
            raise _HistoryLost(f"cluster id changed from {before:x} to {header.cluster_id:x}")
        self._cluster_id = header.cluster_id
        seen = max((start - 1 for start in self._next if start is not None), default=0)
        if header.revision >= seen:
            self._behind_since = None
            return
        # A member that has just started lags for a moment; a store that stays behind is not ours.
        if self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= DEAD_SECONDS:
            raise _HistoryLost(f"revision went back from {seen} to {header.revision}")

    async def _created(self, response: pb.WatchResponse, origin: Endpoint) -> None:
        index = response.watch_id - 1
        if self._next[index] is None:
            self._next[index] = response.header.revision + 1
        self._waiting.discard(response.watch_id)
        if self._waiting:
            return
        self._backoff.reset()
        if self._lost_since is not None:
            gap = self._heard - self._lost_since
            log.info("etcd watch resumed", endpoint=origin.address, gap_seconds=round(gap, 3))
            self._lost_since = None
        if self._reread is not None:
            reason, self._reread = self._reread, None
            await self._queue.put(Reread(reason))

    async def _deliver(self, response: pb.WatchResponse) -> None:
        index = response.watch_id - 1
        start = self._next[index] or 0
        fresh = [event for event in response.events if event.kv.mod_revision >= start]
        if not fresh:
            return
        # The header may be ahead of the events while a watch catches up: only what arrived counts.
        await self._queue.put(Changes(tuple(map(_change, fresh))))
        self._next[index] = fresh[-1].kv.mod_revision + 1

    def _progress(self, response: pb.WatchResponse) -> None:
        """Everything up to the header's revision has been sent (for all prefixes, or for one)."""
        if self._waiting:
            return
        everyone = response.watch_id == _ALL_WATCHES
        for index, start in enumerate(self._next):
            if everyone or index == response.watch_id - 1:
                self._next[index] = max(start or 0, response.header.revision + 1)

    def _restart(self, reason: str, origin: Endpoint) -> None:
        log.warning("etcd watch must read again", endpoint=origin.address, reason=reason)
        self._next = [None] * len(self._prefixes)
        self._reread = reason

    def _move_on(self, lost: _SessionLost, origin: Endpoint) -> None:
        if self._lost_since is None:
            self._lost_since = self._heard
            log.warning("etcd watch lost", endpoint=origin.address, reason=str(lost))
        if lost.dead:
            self._client.pool.quarantine(origin)
        else:
            self._client.pool.avoid(origin)


async def _ask_progress(call: grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]) -> None:
    """Ask for progress for as long as the stream takes it; what ends the stream is seen by its reader."""
    request = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            await call.write(request)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _meaning(error: grpc.aio.AioRpcError) -> Exception:
    text = error.details() or error.code().name
    verdict = judge(error.code(), text)
    if verdict.action is Action.FATAL:
        return RequestRefused(verdict.refusal, text)
    return _SessionLost(text, dead=not verdict.live)


def _cancelled(response: pb.WatchResponse) -> Exception:
    if response.compact_revision:
        return _HistoryLost(f"history before revision {response.compact_revision} was compacted")
    verdict = judge(grpc.StatusCode.UNKNOWN, response.cancel_reason)
    if verdict.action is Action.FATAL:
        return RequestRefused(verdict.refusal, response.cancel_reason)
    return _SessionLost(f"cancelled by etcd: {response.cancel_reason or 'no reason given'}")


def _change(event: pb.Event) -> Change:
    deleted = event.type == pb.Event.DELETE
    return Change(event.kv.key, None if deleted else event.kv.value, event.kv.mod_revision)
