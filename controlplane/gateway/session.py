"""One etcd client and the watch that tells of changes between two polls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from controlplane.base.backoff import Backoff
from controlplane.base.logging import get_logger
from controlplane.model.cards import ClusterSnapshot
from controlplane.store import schema
from controlplane.store.client import EtcdClient
from controlplane.store.endpoints import CredentialsSource
from controlplane.store.errors import StoreError
from controlplane.store.snapshot import read_snapshot
from controlplane.store.watch import Watch

log = get_logger("cluster-session")


class EtcdSession:
    """Reads snapshots of one cluster; every change that the watch sees sets `wake`.

    The watch only shortens the way to the next read: what counts is read in one transaction, and a watch that
    fails costs at most one poll interval.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        seconds: float,
        wake: asyncio.Event,
        credentials: CredentialsSource | None = None,
    ) -> None:
        self._client = EtcdClient(endpoints, call_seconds=seconds, credentials=credentials)
        self._seconds = seconds
        self._wake = wake
        self._watch: asyncio.Task[None] | None = None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`host:port` of the members in use."""
        return self._client.endpoints

    def use_endpoints(self, endpoints: Sequence[str]) -> None:
        """Go on with these members; the connections that stay are kept."""
        self._client.set_endpoints(endpoints)

    async def read(self) -> ClusterSnapshot:
        """One linearizable snapshot within the deadline. Raises StoreError."""
        return await read_snapshot(self._client, seconds=self._seconds)

    def watch_after(self, revision: int) -> None:
        """Watch for everything after `revision`, unless a watch runs already."""
        if self._watch is not None and self._watch.done():
            log.error("Cluster watch ended", error=repr(self._watch.exception()))
            self._watch = None
        if self._watch is None:
            self._watch = asyncio.create_task(self._follow(revision + 1), name="cluster-watch")

    async def avoid_current(self) -> None:
        """Leave the member that answered last: it is not our cluster's. The watch may hang on it too."""
        self._client.avoid_current()
        await self._end_watch()

    async def close(self) -> None:
        """End the watch and close every connection."""
        await self._end_watch()
        await self._client.close()

    async def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None

    async def _follow(self, start_revision: int) -> None:
        backoff = Backoff(1.0, 30.0)
        while True:
            try:
                async with Watch(
                    self._client, (schema.CLUSTER_PREFIX, schema.TARGETS_PREFIX), start_revision
                ) as items:
                    async for _ in items:
                        self._wake.set()
            except StoreError as error:
                log.warning("Cluster watch refused", error=str(error))
            await asyncio.sleep(backoff.next())
