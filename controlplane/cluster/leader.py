"""The leader: elected by a lease, it writes health and moves the quorum, one step and one sentence a cycle.

Every write carries the lease's fence. Hosts that don't lead only look, more often than the leader's
cycle, whether the place is free.
"""

from __future__ import annotations

from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.event_log import EventSink
from controlplane.cluster.health_round import HealthRound
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.quorum_mover import QuorumMover
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.cluster.trust import Trust
from controlplane.model.cards import ClusterSnapshot
from controlplane.store.codec import RecordError
from controlplane.store.election import Leadership, LeadershipLost, Standing, campaign, read_leader
from controlplane.store.errors import StoreError
from controlplane.store.lease import Lease
from controlplane.store.membership import list_members

# A membership call (2 s) and its margin must fit into what is left between two renewals (every third of
# this).
LEASE_SECONDS = 5
FOLLOWER_POLL_SECONDS = 1.0

log = get_logger("leader")


class Leader:
    """One host's part in the election and the leader's work."""

    def __init__(
        self,
        settings: ClusterSettings,
        supervisor: MemberSupervisor,
        link: EtcdLink,
        health: HealthRound,
        events: EventSink,
        trust: Trust,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._link = link
        self._health = health
        self._events = events
        self._trust = trust
        self._leadership: Leadership | None = None
        self._followed = ""
        self._apis: dict[str, str] = {}
        self._cycles_led = 0
        self._told: list[str] = []
        self._mover = QuorumMover(settings, link, events, trust)
        self._said = OnChange()

    @property
    def standing(self) -> Standing:
        """What this host knows of the election."""
        if self._leadership is None:
            return Standing(None, None, self._followed, self._apis.get(self._followed, ""))
        host = self._settings.host
        return Standing(self._link.client, self._leadership, host, self._settings.api_endpoint)

    @property
    def interval(self) -> float:
        """Seconds from one cycle to the next."""
        cycle = self._settings.cycle_seconds
        return cycle if self._leadership is not None else min(cycle, FOLLOWER_POLL_SECONDS)

    async def cycle(self) -> None:
        """Run one cycle and log its sentence: each one of a leader, a follower's when it changes.

        In an outage the details change in every cycle, with the member that is asked: its kind counts.
        """
        self._told = []
        try:
            kind = sentence = await self._cycle()
        except (StoreError, RequestError, RecordError) as error:
            await self._check_lease(error)
            done = "; ".join(self._told)
            sentence = f"{done}; broken off: {error}" if done else f"nothing done: {error}"
            kind = type(error).__name__
        if self._leadership is not None or self._said.changed(kind):
            log.info("cycle", says=sentence)

    async def resign(self) -> None:
        """Give the leadership back, so that another host need not wait for the lease to end."""
        leadership, self._leadership = self._leadership, None
        if leadership is not None:
            await leadership.lease.close()

    async def _check_lease(self, error: Exception) -> None:
        if self._leadership is not None and (
            isinstance(error, LeadershipLost) or self._leadership.lease.lost
        ):
            log.warning("leadership lost", reason=str(error))
            await self.resign()

    async def _cycle(self) -> str:
        membership = self._supervisor.membership
        if membership is None or not membership.has_run:
            await self.resign()
            return "not leading: this host has no etcd member"
        if membership.phase == "creating":
            return "not leading: the cluster is being created"
        picture = await self._link.snapshot(membership)
        self._apis = {record.host: record.addresses.get("api", "") for record in picture.hosts}
        if self._settings.host not in {record.host for record in picture.hosts if record.enabled}:
            await self.resign()
            return "not leading: this host is disabled"
        leadership = await self._lead()
        if leadership is None:
            return await self._follow()
        return await self._work(leadership, picture)

    async def _lead(self) -> Leadership | None:
        """Return our leadership, won in this cycle or before."""
        if self._leadership is not None and self._leadership.lease.lost:
            log.warning("leadership lost", reason="its lease ended")
            await self.resign()
        client = self._link.client
        if self._leadership is None and await read_leader(client) is None:
            lease = await Lease.grant(client, LEASE_SECONDS)
            won = None
            try:
                won = await campaign(client, lease, self._settings.host)
            finally:
                if won is None:
                    await lease.close()
            if won is not None:
                self._leadership, self._cycles_led = won, 0
                self._mover = QuorumMover(self._settings, self._link, self._events, self._trust)
                self._health.begin_term()
                log.info("leadership won", term=won.term)
                self._events.note("leader", self._settings.host, f"leads (term {won.term})")
        return self._leadership

    async def _follow(self) -> str:
        self._link.note_members(await list_members(self._link.client))
        leader = await read_leader(self._link.client)
        self._followed = leader.name if leader is not None else ""
        return f"following {leader.name}" if leader is not None else "following: no one leads yet"

    async def _work(self, leadership: Leadership, picture: ClusterSnapshot) -> str:
        warming_up = self._cycles_led < self._settings.warmup_cycles
        self._cycles_led += 1
        warm = " (warming up)" if warming_up else ""
        self._told.append(f"leading{warm}")
        health = await self._health.run(self._link.client, leadership, picture, warming_up)
        self._told = [f"leading{warm}: {health}"]
        self._told.append(await self._mover.move(leadership, picture, warming_up))
        return "; ".join(self._told)
