"""Moves the quorum: what the leader does about etcd's members in one cycle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.cluster import member_client
from controlplane.cluster.event_log import EventSink
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.observe import EvenWatch, LearnerWatch, Strikes, observe, quorum_view
from controlplane.cluster.quorum import Hold, QuorumView, Remove, finished_joins, plan_step
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.steps import carry_out, clear_left_step
from controlplane.cluster.trust import Trust
from controlplane.model.cards import ClusterSnapshot
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership
from controlplane.store.joins import JoinRecord, clear_join, read_joins, write_join
from controlplane.store.membership import Member, list_members

log = get_logger("membership")


class QuorumMover:
    """One leader's view of the members over time. A new leader begins with a new one: nothing is held against
    a member that this leader did not see itself.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        link: EtcdLink,
        events: EventSink,
        trust: Trust,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._link = link
        self._events = events
        self._trust = trust
        self._strikes = Strikes()
        self._learners = LearnerWatch(settings.learner_seconds, clock)
        self._even = EvenWatch(settings.even_voters_seconds, clock)

    async def move(self, leadership: Leadership, picture: ClusterSnapshot, warming_up: bool) -> str:
        """Make at most one step; the state of the quorum in words. Raises LeadershipLost, or StoreError."""
        client = self._link.client
        await clear_left_step(client, leadership)
        members = await list_members(client)
        self._link.note_members(members)
        view = await self._look(client, picture, members, warming_up)
        for host in finished_joins(view):
            await clear_join(client, host, leadership)
        step = plan_step(view)
        state = _state(view)
        if isinstance(step, Hold):
            return state + (f", {step.reason}" if step.reason else "")
        if isinstance(step, Remove) and step.withdraws_join:
            await self._withdraw(client, leadership, view, step)
        outcome = await carry_out(client, leadership, step, members)
        self._events.note("membership", step.host, outcome)
        return f"{state}, {outcome}"

    async def _look(
        self, client: EtcdClient, picture: ClusterSnapshot, members: list[Member], warming_up: bool
    ) -> QuorumView:
        observed = self._learners.judge(await observe(client, members, None if warming_up else self._strikes))
        joins = [join for join in await read_joins(client) if not join.refused]
        view = replace(
            quorum_view(picture, observed, joins, self._settings.bad_member_strikes),
            leader_host=self._settings.host,
            even_for_long=self._even.judge(observed),
        )
        if not joins:
            return view
        away = await _away(self._trust, picture, joins)
        return replace(view, joins=tuple(replace(join, alive=join.host not in away) for join in view.joins))

    async def _withdraw(
        self, client: EtcdClient, leadership: Leadership, view: QuorumView, step: Remove
    ) -> None:
        """End the host's request before its learner goes: who is added next is another host, if one waits."""
        peer_url = next((m.peer_url for m in view.members if m.member_id == step.member_id), "")
        log.warning("learner given up", host=step.host, peer_url=peer_url, reason=step.reason)
        self._events.note("alarm", step.host, f"its learner is given up: {step.reason}")
        await write_join(client, JoinRecord(step.host, peer_url or "unknown", 0, step.reason), leadership)


async def _away(trust: Trust, picture: ClusterSnapshot, joins: Iterable[JoinRecord]) -> set[str]:
    """Hosts that asked to join and whose service does not answer now: their learner would never start."""
    api = {record.host: record.addresses["api"] for record in picture.hosts if "api" in record.addresses}
    hosts = [join.host for join in joins]
    up = await asyncio.gather(*(member_client.is_up(trust, api[host]) for host in hosts if host in api))
    answered = dict(zip((host for host in hosts if host in api), up, strict=True))
    return {host for host in hosts if not answered.get(host, False)}


def _state(view: QuorumView) -> str:
    silent = [view.host_of(member) for member in view.members if not member.answers]
    state = f"{len(view.voters)} voters, {len(view.learners)} learners"
    return state + (f", silent: {', '.join(silent)}" if silent else "")
