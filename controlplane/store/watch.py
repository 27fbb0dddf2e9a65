"""A watch that resumes by itself on another endpoint, with nothing lost and nothing doubled.

A member that is suspended keeps its connection open and says nothing, so the watch asks for its progress
every half second and gives a member up that is silent for 1.5 s. When history is missing (compacted), or
the store is not the one that was watched (another cluster id, a revision that stays behind), the consumer
is told to read everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import grpc
from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Backoff
from controlplane.base.logging import get_logger
from controlplane.store.client import EtcdClient
from controlplane.store.endpoints import HAS_LEADER, Endpoint
from controlplane.store.errors import Action, RequestRefused, StoreUnavailable, judge
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
    with`, by one consumer. The queue is bounded: a slow consumer slows the stream down, and loses nothing.
    Iterating raises RequestRefused when etcd refuses to be watched (permissions). `sessions` counts the
    connections that were watched one after the other.
    """

    def __init__(self, client: EtcdClient, prefixes: Sequence[bytes], start_revision: int) -> None:
        self._client = client
        self._prefixes = tuple(prefixes)
        # The first revision of each prefix that was not delivered yet.
        self._next = [start_revision] * len(self._prefixes)
        self._queue: asyncio.Queue[WatchItem] = asyncio.Queue(QUEUE_ITEMS)
        self._news = asyncio.Event()
        self._cluster_id: int | None = None
        self._endpoint: str | None = None
        self.sessions = 0
        self._reread: str | None = None
        self._heard = client.clock()
        self._lost_since: float | None = None
        self._behind_since: float | None = None
        self._behind = ""
        self._waiting: set[int] = set()
        self._backoff = Backoff(0.05, 0.5, uniform=client.uniform)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._run(), name="etcd-watch")
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def endpoint(self) -> str | None:
        """The member that is watched now; None while there is none."""
        return self._endpoint

    def resume_revision(self, prefix: bytes) -> int:
        """The first revision of a prefix that is still to come."""
        return self._next[self._prefixes.index(prefix)]

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchItem:
        while self._queue.empty():
            if self._task is None or self._task.cancelled():
                raise StopAsyncIteration
            if self._task.done():
                self._task.result()  # raises what ended the watch
            self._news.clear()
            await self._news.wait()
        return self._queue.get_nowait()

    async def _emit(self, item: WatchItem) -> None:
        await self._queue.put(item)
        self._news.set()

    async def _run(self) -> None:
        while True:
            origin = self._client.pool.candidates()[0]
            try:
                if self._reread is not None:
                    await self._go_to_present()
                await self._session(origin)
            except _HistoryLost as lost:
                log.warning("etcd watch must read again", endpoint=origin.address, reason=str(lost))
                self._reread = str(lost)
            except _SessionLost as lost:
                self._move_on(lost, origin)
            except StoreUnavailable:
                self._move_on(_SessionLost("no member answers"), origin)
            await asyncio.sleep(self._backoff.next())

    async def _go_to_present(self) -> None:
        """Give up what was not delivered: go on after the store's present revision."""
        present = (await self._client.range(self._prefixes[0])).header
        self._cluster_id = present.cluster_id
        self._next = [present.revision + 1] * len(self._prefixes)

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
            if self._behind_since is not None:
                raise _HistoryLost(self._behind) from None
            raise _SessionLost(f"silent for {DEAD_SECONDS} s", dead=True) from None
        except grpc.aio.AioRpcError as error:
            raise _meaning(error) from None
        except asyncio.InvalidStateError:
            raise _SessionLost("stream ended while the watch was created") from None
        finally:
            self._endpoint = None
            call.cancel()
            await _end(pinger)
            await endpoint.close()

    async def _create(self, call: grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]) -> None:
        self._waiting = set(range(1, len(self._prefixes) + 1))
        self._behind_since = None
        for watch_id, (prefix, start) in enumerate(zip(self._prefixes, self._next, strict=True), start=1):
            # One revision early, which `_deliver` leaves out: etcd reports no progress of a watch that
            # starts in the future, so that a quiet watch could not be told from a suspended member.
            create = pb.WatchCreateRequest(
                key=prefix, range_end=prefix_end(prefix), start_revision=max(1, start - 1), watch_id=watch_id
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
        seen = max(self._next) - 1
        if header.revision >= seen:
            self._behind_since = None
            return
        # A member that has just started lags for a moment; a store that stays behind is not ours.
        if self._behind_since is None:
            self._behind_since = now
            self._behind = f"revision went back from {seen} to {header.revision}"
        elif now - self._behind_since >= DEAD_SECONDS:
            raise _HistoryLost(self._behind)

    async def _created(self, response: pb.WatchResponse, origin: Endpoint) -> None:
        self._waiting.discard(response.watch_id)
        if self._waiting:
            return
        self._backoff.reset()
        self._endpoint = origin.address
        self.sessions += 1
        if self._lost_since is not None:
            gap = self._heard - self._lost_since
            log.info("etcd watch resumed", endpoint=origin.address, gap_seconds=round(gap, 3))
            self._lost_since = None
        if self._reread is not None:
            reason, self._reread = self._reread, None
            await self._emit(Reread(reason))

    async def _deliver(self, response: pb.WatchResponse) -> None:
        index = response.watch_id - 1
        start = self._next[index]
        fresh = [event for event in response.events if event.kv.mod_revision >= start]
        if not fresh:
            return
        # The header may be ahead of the events while a watch catches up: only what arrived counts.
        await self._emit(Changes(tuple(map(_change, fresh))))
        self._next[index] = fresh[-1].kv.mod_revision + 1

    def _progress(self, response: pb.WatchResponse) -> None:
        """Everything up to the header's revision has been sent (for all prefixes, or for one)."""
        if self._waiting:
            return
        everyone = response.watch_id == _ALL_WATCHES
        for index, start in enumerate(self._next):
            if everyone or index == response.watch_id - 1:
                self._next[index] = max(start, response.header.revision + 1)

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
