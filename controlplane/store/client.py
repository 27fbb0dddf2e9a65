"""The etcd client: calls with a deadline that survive the loss or suspension of single members.

Reads are tried on one endpoint after the other within the call's deadline. Writes are never repeated once
they may have happened: such a call ends with OutcomeUnknown, which its caller resolves by reading.
Everything that changes a record is therefore a transaction with compares.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

import grpc
from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Backoff, Clock, Deadline, Random
from controlplane.base.logging import get_logger
from controlplane.store.endpoints import (
    HAS_LEADER,
    CallFailed,
    CredentialsSource,
    Endpoint,
    EndpointPool,
    outcome,
)
from controlplane.store.errors import (
    Action,
    OutcomeUnknown,
    Refusal,
    RequestRefused,
    StoreError,
    StoreUnavailable,
    Verdict,
    judge,
)

CALL_SECONDS = 0.5
ATTEMPT_SHARE = 0.4
_SHORTEST_ATTEMPT = 0.005
# gRPC and the event loop notice a deadline a few milliseconds late; the caller's deadline holds all the same.
_LATENESS = 0.01
_TAKEN_OUT = Verdict(Action.ELSEWHERE)
# Shortly after a change of its users etcd 3.5.30 was seen to refuse who is allowed (1 of 30 runs of a
# test): "permission denied" counts when it is repeated, with a pause after each, whether another member or
# the same one is asked next. It is certain then that the call did nothing.
_DENIED_TRIES = 5

log = get_logger("etcd-client")


class Answer(Protocol):
    """What every response of etcd has."""

    @property
    def header(self) -> pb.ResponseHeader:
        """Who answered, at which revision."""


Q = TypeVar("Q")
R = TypeVar("R", bound=Answer)
Rpc = Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[Q, R]]


@dataclass(slots=True)
class CallCounts:
    """Counters of one client since its start."""

    calls: int = 0
    attempts: int = 0
    failed_calls: int = 0


class _AttemptFailed(Exception):
    """One attempt on one endpoint failed."""

    def __init__(self, endpoint: Endpoint, verdict: Verdict, text: str) -> None:
        super().__init__(f"{endpoint.address}: {text}")
        self.verdict = verdict
        self.text = text

    @property
    def denied(self) -> bool:
        """Whether etcd said that the caller may not do this."""
        return self.verdict.refusal is Refusal.PERMISSION_DENIED


class EtcdClient:
    """A client of one etcd cluster, for one event loop. Create it inside the loop; `async with` closes it.

    `endpoints` are `host:port` (or etcd's client URLs); `call_seconds` is the default deadline of a call.
    With `credentials` the channels use TLS: each new one asks for them. Raises ValueError for no endpoint,
    AddressError for a bad one.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        call_seconds: float = CALL_SECONDS,
        credentials: CredentialsSource | None = None,
        clock: Clock = time.monotonic,
        uniform: Random = random.random,
    ) -> None:
        self.call_seconds = call_seconds
        self.counts = CallCounts()
        self.cluster_id: int | None = None
        self.clock = clock
        self.uniform = uniform
        self.credentials = credentials
        self.pool = EndpointPool(endpoints, credentials, uniform)
        self._dedicated: set[EndpointPool] = set()

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every channel. Leases and watches of this client are closed by their owners before."""
        await self.pool.close()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Canonical `host:port` of the endpoints in use."""
        return self.pool.addresses

    def set_endpoints(self, endpoints: Sequence[str]) -> None:
        """Use these endpoints from now on, for leases and watches too. Raises as the constructor does."""
        self.pool.replace(endpoints)
        for pool in self._dedicated:
            pool.replace(endpoints)

    def avoid_current(self) -> None:
        """Ask another endpoint first from now on: the caller found the answers of this one to be stale."""
        self.pool.avoid(self.pool.candidates()[0])

    def open_pool(self) -> EndpointPool:
        """A pool with channels of its own, which follows `set_endpoints`; give it back with `close_pool`."""
        pool = EndpointPool(self.endpoints, self.credentials, self.uniform)
        self._dedicated.add(pool)
        return pool

    async def close_pool(self, pool: EndpointPool) -> None:
        """Close a pool of `open_pool`."""
        self._dedicated.discard(pool)
        await pool.close()

    async def range(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        limit: int = 0,
        revision: int = 0,
        seconds: float | None = None,
    ) -> pb.RangeResponse:
        """A linearizable read of one key or of the keys up to `range_end`; with a limit, of the first ones.

        With `revision` they are read as they were then.
        """
        request = pb.RangeRequest(key=key, range_end=range_end, limit=limit, revision=revision)
        return await self.read(lambda e: e.kv.Range, request, seconds)

    async def get(self, key: bytes, *, seconds: float | None = None) -> pb.KeyValue | None:
        """A linearizable read of one key; None when it does not exist."""
        answer = await self.range(key, seconds=seconds)
        return answer.kvs[0] if answer.kvs else None

    async def txn(
        self,
        compare: Iterable[pb.Compare],
        success: Sequence[pb.RequestOp],
        failure: Sequence[pb.RequestOp] = (),
        *,
        seconds: float | None = None,
    ) -> pb.TxnResponse:
        """One transaction; a read if no operation of it writes, else a write."""
        request = pb.TxnRequest(compare=compare, success=success, failure=failure)
        if all(op.WhichOneof("request") == "request_range" for op in (*success, *failure)):
            return await self.read(lambda e: e.kv.Txn, request, seconds)
        return await self.write(lambda e: e.kv.Txn, request, seconds)

    async def read(self, rpc: Rpc[Q, R], request: Q, seconds: float | None = None) -> R:
        """Call on one endpoint after the other until one answers or the deadline is over.

        Raises StoreUnavailable, or RequestRefused.
        """
        total = seconds or self.call_seconds
        return await self._call(rpc, request, total, total * ATTEMPT_SHARE, is_write=False)

    async def write(
        self, rpc: Rpc[Q, R], request: Q, seconds: float | None = None, *, at: str | None = None
    ) -> R:
        """Call once; again or elsewhere only when it is certain that the call before did nothing.

        `at` is the one endpoint that is asked, where it matters which. Raises StoreUnavailable (nothing
        happened), OutcomeUnknown, or RequestRefused; KeyError for an endpoint that is not the client's.
        """
        total = seconds or self.call_seconds
        return await self._call(rpc, request, total, total, is_write=True, at=at)

    async def _call(
        self,
        rpc: Rpc[Q, R],
        request: Q,
        total: float,
        share: float,
        *,
        is_write: bool,
        at: str | None = None,
    ) -> R:
        """Round after round over the endpoints, each attempt at most `share` seconds long.

        There is one pause after each round, and after each denial, which may be the end of a round.
        """
        self.counts.calls += 1
        deadline = Deadline(max(total - _LATENESS, 0.5 * total), self.clock)
        pause = Backoff(0.03, 0.2, uniform=self.uniform)
        last: StoreError = StoreUnavailable(f"etcd gave no answer in {total} s; last: no attempt")
        denied = 0
        while True:
            paused = False
            for endpoint in [self.pool.get(at)] if at is not None else self.pool.candidates():
                left = deadline.remaining()
                if left < _SHORTEST_ATTEMPT:
                    raise self._failed(last)
                try:
                    return await self._attempt(endpoint, rpc, request, min(left, share))
                except _AttemptFailed as failed:
                    denied += failed.denied
                    if paused := failed.denied and denied < _DENIED_TRIES:
                        last = RequestRefused(failed.verdict.refusal, str(failed))
                        await asyncio.sleep(min(pause.next(), deadline.remaining()))
                        continue
                    self._raise_if_final(failed, is_write)
                    last = StoreUnavailable(f"etcd gave no answer in {total} s; last: {failed}")
            if not paused:
                await asyncio.sleep(min(pause.next(), deadline.remaining()))

    async def ask(self, address: str, rpc: Rpc[Q, R], request: Q, seconds: float) -> R:
        """Call exactly one member, e.g. for its status. Raises as `read`; KeyError for another address."""
        endpoint = self.pool.get(address)
        self.counts.calls += 1
        try:
            return await self._attempt(endpoint, rpc, request, seconds)
        except _AttemptFailed as failed:
            if failed.verdict.action is Action.FATAL:
                raise self._failed(RequestRefused(failed.verdict.refusal, str(failed))) from failed
            raise self._failed(StoreUnavailable(str(failed))) from failed

    async def _attempt(self, endpoint: Endpoint, rpc: Rpc[Q, R], request: Q, seconds: float) -> R:
        self.counts.attempts += 1
        if endpoint.closed:
            raise _AttemptFailed(endpoint, _TAKEN_OUT, "taken out of use")
        try:
            answer = await outcome(rpc(endpoint)(request, timeout=seconds, metadata=HAS_LEADER))
        except CallFailed as failed:
            verdict = judge(failed.code, failed.text)
            if not verdict.live:
                self.pool.quarantine(endpoint)
            raise _AttemptFailed(endpoint, verdict, failed.text) from None
        self.pool.answered(endpoint)
        self._note_cluster(endpoint, answer.header)
        return answer

    def _failed(self, error: StoreError) -> StoreError:
        self.counts.failed_calls += 1
        return error

    def _raise_if_final(self, failed: _AttemptFailed, is_write: bool) -> None:
        """Raise what ends the whole call; return when another attempt is right."""
        verdict = failed.verdict
        if verdict.action is Action.FATAL:
            raise self._failed(RequestRefused(verdict.refusal, str(failed))) from failed
        if is_write and verdict.may_have_happened:
            raise self._failed(OutcomeUnknown(f"etcd write without an answer: {failed}")) from failed
        if verdict.action is Action.OUTAGE:
            raise self._failed(StoreUnavailable(str(failed))) from failed

    def _note_cluster(self, endpoint: Endpoint, header: pb.ResponseHeader) -> None:
        if header.cluster_id == 0:  # some maintenance calls answer with an empty header
            return
        if self.cluster_id is not None and header.cluster_id != self.cluster_id:
            log.warning(
                "etcd cluster id changed",
                endpoint=endpoint.address,
                before=f"{self.cluster_id:x}",
                now=f"{header.cluster_id:x}",
            )
        self.cluster_id = header.cluster_id
