"""Follows the host's membership: connects to its cluster's etcd and writes a new cluster's first records."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from controlplane.base.logging import get_logger
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.cards import ClusterConfig, HostRecord
from controlplane.store.client import EtcdClient
from controlplane.store.codec import RecordError
from controlplane.store.errors import StoreError
from controlplane.store.hosts import update_host
from controlplane.store.writes import create_cluster

log = get_logger("cluster")


class Keeper:
    """Brings connection and creation in line with the membership. `wall_clock` gives Unix seconds.

    `secure_cluster` closes a new cluster's etcd to strangers; it can be repeated.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        supervisor: MemberSupervisor,
        link: EtcdLink,
        secure_cluster: Callable[[EtcdClient], Awaitable[None]],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._link = link
        self._secure_cluster = secure_cluster
        self._wall_clock = wall_clock
        self._said = OnChange()

    async def cycle(self) -> None:
        """Run once; a creation that fails is tried again in the next cycle, and after a restart."""
        membership = self._supervisor.membership
        await self._link.follow(membership)
        if membership is None or membership.phase != "creating" or not membership.has_run:
            return
        try:
            await self._create(membership)
        except (StoreError, RecordError, OSError) as error:
            if self._said.changed(str(error)):
                log.warning("cluster not created yet", reason=str(error))

    async def _create(self, membership: Membership) -> None:
        config = ClusterConfig(membership.cluster_name, self._wall_clock(), membership.cluster_uuid)
        present = await create_cluster(self._link.client, config)
        if present.uuid != config.uuid:
            raise RecordError(f"etcd already holds cluster {present.uuid} ({present.name})")
        await update_host(self._link.client, self._settings.host, self._first_host)
        await self._secure_cluster(self._link.client)
        log.info("cluster created", name=config.name, uuid=config.uuid)
        self._supervisor.creation_complete()

    def _first_host(self, present: HostRecord | None) -> HostRecord | None:
        settings = self._settings
        return present or HostRecord(settings.host, True, settings.witness, settings.addresses)
