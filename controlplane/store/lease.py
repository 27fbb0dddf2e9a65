"""A lease that is kept alive on channels of its own, so that nothing done to other calls can cost it."""

from __future__ import annotations

import asyncio
import contextlib

from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Backoff
from controlplane.base.logging import get_logger
from controlplane.store.client import EtcdClient
from controlplane.store.endpoints import HAS_LEADER, CallFailed, Endpoint, outcome
from controlplane.store.errors import Action, StoreError, judge

log = get_logger("etcd-lease")


class Lease:
    """A granted lease and the task that renews it every third of its time to live.

    `remaining()` is a lower bound by our own clock: it counts from the moment before the last answered
    renewal was sent. When it reaches zero, or etcd says that the lease is gone, the lease is lost for good.
    """

    def __init__(self, client: EtcdClient, lease_id: int, ttl: float, sent: float) -> None:
        self.id = lease_id
        self.ttl = ttl
        self._client = client
        self._pool = client.open_pool()
        self._valid_until = sent + ttl
        self._lost = False
        self._task = asyncio.create_task(self._keep(), name=f"etcd-lease-{lease_id:x}")

    @classmethod
    async def grant(cls, client: EtcdClient, ttl: int, *, seconds: float | None = None) -> Lease:
        """Ask for a lease of `ttl` seconds and keep it alive until `close`.

        Raises StoreError; after OutcomeUnknown a lease may exist that nobody uses and that expires by itself.
        """
        sent = client.clock()
        answer = await client.write(lambda e: e.lease.LeaseGrant, pb.LeaseGrantRequest(ttl=ttl), seconds)
        return cls(client, answer.id, float(answer.ttl), sent)

    @property
    def lost(self) -> bool:
        """Whether the lease is gone or can't be trusted any more."""
        return self._lost or self.remaining() <= 0

    def remaining(self) -> float:
        """Seconds for which the lease certainly still holds."""
        if self._lost:
            return 0.0
        return max(0.0, self._valid_until - self._client.clock())

    async def close(self, *, revoke: bool = True) -> None:
        """Stop renewing and, unless told otherwise, revoke the lease, which deletes its keys at once."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close_pool(self._pool)
        if revoke and not self._lost:
            # When etcd does not answer, the lease expires by itself.
            with contextlib.suppress(StoreError):
                await self._client.write(lambda e: e.lease.LeaseRevoke, pb.LeaseRevokeRequest(id=self.id))
        self._lost = True

    async def _keep(self) -> None:
        while not self._lost:
            await asyncio.sleep(self.ttl / 3)
            await self._renew()

    async def _renew(self) -> None:
        """Try endpoint after endpoint until one renews the lease or its time is over."""
        pause = Backoff(0.05, 0.4, uniform=self._client.uniform)
        while True:
            for endpoint in self._pool.candidates():
                if self.remaining() <= 0:
                    self._lose("no renewal was answered in time")
                    return
                if not endpoint.closed and await self._renew_at(endpoint):
                    return
            await asyncio.sleep(min(pause.next(), self.remaining()))

    async def _renew_at(self, endpoint: Endpoint) -> bool:
        """One renewal; True when there is an answer, be it that the lease is gone."""
        sent = self._client.clock()
        try:
            granted = await outcome(self._exchange(endpoint))
        except CallFailed as failed:
            verdict = judge(failed.code, failed.text)
            if verdict.action is Action.FATAL:
                self._lose(failed.text)
                return True
            if not verdict.live:
                self._pool.quarantine(endpoint)
            return False
        self._pool.answered(endpoint)
        if granted <= 0:
            self._lose("etcd does not know it any more")
        else:
            self._valid_until = sent + granted
        return True

    async def _exchange(self, endpoint: Endpoint) -> float:
        """Send one renewal on a stream of its own; the granted seconds, 0 when the lease is gone."""
        call = endpoint.lease.LeaseKeepAlive(
            iter([pb.LeaseKeepAliveRequest(id=self.id)]),
            timeout=min(0.5, self.ttl / 6),
            metadata=HAS_LEADER,
        )
        async for answer in call:
            return float(answer.ttl)
        return 0.0

    def _lose(self, reason: str) -> None:
        if not self._lost:
            log.warning("etcd lease lost", lease=f"{self.id:x}", reason=reason)
            self._lost = True
