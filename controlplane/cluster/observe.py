"""What the leader, or a host that is asked to remove another, sees of etcd's members right now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from controlplane.base.backoff import Clock
from controlplane.cluster.quorum import JoinRequest, MemberView, QuorumView
from controlplane.model.cards import ClusterSnapshot
from controlplane.store.client import EtcdClient
from controlplane.store.errors import StoreError
from controlplane.store.joins import JoinRecord
from controlplane.store.membership import Member, MemberStatus, member_status

STATUS_SECONDS = 0.5
# A learner this close to the voters is in sync by etcd's own rule.
CAUGHT_UP = 0.9


class Strikes:
    """Counts, for each member, the observations in a row without an answer."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def note(self, answers: Mapping[int, bool]) -> None:
        """Take one observation of all members; members that are gone are forgotten."""
        self._counts = {
            member_id: 0 if answered else self._counts.get(member_id, 0) + 1
            for member_id, answered in answers.items()
        }

    def of(self, member_id: int) -> int:
        """Strikes of one member."""
        return self._counts.get(member_id, 0)


class LearnerWatch:
    """Tells the learners that were not ready to be promoted for `seconds` without a break."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[int, float] = {}

    def judge(self, members: tuple[MemberView, ...]) -> tuple[MemberView, ...]:
        """Take one observation of all members; returns them with `overdue` set where it is due."""
        now = self._clock()
        behind = [m.member_id for m in members if m.learner and not (m.answers and m.caught_up)]
        self._since = {member_id: self._since.get(member_id, now) for member_id in behind}
        late = {member_id for member_id, since in self._since.items() if now - since >= self._seconds}
        return tuple(replace(m, overdue=True) if m.member_id in late else m for m in members)


class EvenWatch:
    """Tells whether the number of voters has been even for `seconds`."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: float | None = None

    def judge(self, members: Iterable[MemberView]) -> bool:
        """Take one observation of all members."""
        now = self._clock()
        if sum(not member.learner for member in members) % 2:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= self._seconds


async def status_of(client: EtcdClient, member: Member) -> MemberStatus | None:
    """One member's status, None when it does not answer or knows no leader."""
    for url in member.client_urls[:1]:
        try:
            status = await member_status(client, url, seconds=STATUS_SECONDS)
        except (StoreError, KeyError):
            return None
        # Another server at this address, or one cut off from the quorum, is not this member answering.
        return status if status.member_id == member.id and status.leader_id else None
    return None


async def observe(
    client: EtcdClient, members: Iterable[Member], strikes: Strikes | None = None
) -> tuple[MemberView, ...]:
    """Ask every member for its status, all at once."""
    listed = list(members)
    statuses = await asyncio.gather(*(status_of(client, member) for member in listed))
    if strikes is not None:
        strikes.note({m.id: status is not None for m, status in zip(listed, statuses, strict=True)})
    newest = max((status.raft_index for status in statuses if status is not None), default=0)
    return tuple(
        MemberView(
            member_id=member.id,
            name=member.name,
            peer_url=member.peer_urls[0] if member.peer_urls else "",
            learner=member.learner,
            answers=status is not None,
            caught_up=status is not None and status.applied_index >= newest * CAUGHT_UP,
            strikes=strikes.of(member.id) if strikes is not None else 0,
        )
        for member, status in zip(listed, statuses, strict=True)
    )


def quorum_view(
    snapshot: ClusterSnapshot,
    members: tuple[MemberView, ...],
    joins: Iterable[JoinRecord],
    strikes_limit: int,
) -> QuorumView:
    """Put records and members together for the planner."""
    urls = {record.addresses.get("etcd_peer", ""): record.host for record in snapshot.hosts}
    urls.pop("", None)
    return QuorumView(
        members=members,
        hosts_by_peer_url=urls,
        enabled_hosts=frozenset(record.host for record in snapshot.hosts if record.enabled),
        joins=tuple(JoinRequest(join.host, join.peer_url, join.replaces) for join in joins),
        strikes_limit=strikes_limit,
    )
