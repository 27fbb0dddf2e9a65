"""etcd's members and their state, as typed calls.

Act on member ids, never on names: a member that never started has none. A change whose answer was lost raises
OutcomeUnknown; list the members to see what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from akv.etcd import etcd_pb2 as pb

from controlplane.store.client import EtcdClient
from controlplane.store.errors import StoreError

MEMBER_CALL_SECONDS = 2.0
DEFRAGMENT_SECONDS = 30.0

T = TypeVar("T")

# Called right before a change is sent; it raises when the change must not be made any more.
Guard = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Member:
    """One etcd member. `name` and `client_urls` are empty until it starts for the first time."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    learner: bool

    @property
    def started(self) -> bool:
        """Whether it ever started."""
        return bool(self.name)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What one member says of itself. `leader_id` is 0 while it knows no leader; sizes are bytes."""

    member_id: int
    cluster_id: int
    leader_id: int
    learner: bool
    version: str
    raft_term: int
    raft_index: int
    applied_index: int
    revision: int
    db_size: int
    db_size_in_use: int
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A raised alarm: `NOSPACE` or `CORRUPT`, and the member that raised it."""

    member_id: int
    kind: str


async def list_members(
    client: EtcdClient, *, linearizable: bool = True, seconds: float | None = None
) -> list[Member]:
    """All members; not linearizable, also while there is no quorum. Raises StoreError."""
    request = pb.MemberListRequest(linearizable=linearizable)
    answer = await client.read(lambda e: e.cluster.MemberList, request, seconds)
    return _members(answer.members)


async def add_learner(
    client: EtcdClient, peer_url: str, *, guard: Guard = lambda: None
) -> tuple[Member, list[Member]]:
    """Add a learner; returns it and all members. Raises StoreError.

    StoreUnavailable with "unhealthy cluster" comes for some seconds after a start or a reconnect: try again
    for 10 s at least. RequestRefused: TOO_MANY_LEARNERS, PEER_URL_EXISTS, NOT_ENOUGH_STARTED.
    """
    request = pb.MemberAddRequest(peer_urls=[peer_url], is_learner=True)
    answer = await client.write(lambda e: _guarded(guard, e.cluster.MemberAdd), request, MEMBER_CALL_SECONDS)
    return _member(answer.member), _members(answer.members)


async def remove_member(client: EtcdClient, member_id: int, *, guard: Guard = lambda: None) -> list[Member]:
    """Remove a member; returns those that stay. Raises StoreError (RequestRefused: MEMBER_NOT_FOUND)."""
    request = pb.MemberRemoveRequest(id=member_id)
    answer = await client.write(
        lambda e: _guarded(guard, e.cluster.MemberRemove), request, MEMBER_CALL_SECONDS
    )
    return _members(answer.members)


async def promote_member(client: EtcdClient, member_id: int, *, guard: Guard = lambda: None) -> list[Member]:
    """Make a learner a voter; returns all members. Raises StoreError (RequestRefused: LEARNER_NOT_READY).

    Raft's leader is asked. Another member hands the question on to it, but without the caller's name: under
    access control the leader then refuses, and the call ends at its deadline (measured on 3.5.30).
    """
    request = pb.MemberPromoteRequest(id=member_id)
    at = await _raft_leader(client)
    answer = await client.write(
        lambda e: _guarded(guard, e.cluster.MemberPromote), request, MEMBER_CALL_SECONDS, at=at
    )
    return _members(answer.members)


async def _raft_leader(client: EtcdClient) -> str | None:
    """The endpoint of raft's leader; None when none of the client's endpoints says to be it."""

    async def leads(endpoint: str) -> bool:
        try:
            status = await member_status(client, endpoint)
        except (StoreError, KeyError):
            return False
        return status.member_id == status.leader_id

    endpoints = client.endpoints
    answers = await asyncio.gather(*(leads(endpoint) for endpoint in endpoints))
    return next((endpoint for endpoint, yes in zip(endpoints, answers, strict=True) if yes), None)


async def move_raft_leader(client: EtcdClient, endpoint: str, target_id: int) -> None:
    """Let the voter `target_id` lead raft; asked of the present leader. Raises StoreError, or KeyError."""
    request = pb.MoveLeaderRequest(target_id=target_id)
    await client.ask(endpoint, lambda e: e.maintenance.MoveLeader, request, MEMBER_CALL_SECONDS)


async def member_status(client: EtcdClient, endpoint: str, *, seconds: float = 0.5) -> MemberStatus:
    """The status of the member at exactly this endpoint of the client. Raises StoreError, or KeyError."""
    answer = await client.ask(endpoint, lambda e: e.maintenance.Status, pb.StatusRequest(), seconds)
    return MemberStatus(
        member_id=answer.header.member_id,
        cluster_id=answer.header.cluster_id,
        leader_id=answer.leader,
        learner=answer.is_learner,
        version=answer.version,
        raft_term=answer.raft_term,
        raft_index=answer.raft_index,
        applied_index=answer.raft_applied_index,
        revision=answer.header.revision,
        db_size=answer.db_size,
        db_size_in_use=answer.db_size_in_use,
        errors=tuple(answer.errors),
    )


async def list_alarms(client: EtcdClient) -> list[Alarm]:
    """Raised alarms. Raises StoreError."""
    request = pb.AlarmRequest(action=pb.AlarmRequest.GET)
    answer = await client.read(lambda e: e.maintenance.Alarm, request)
    return [Alarm(alarm.member_id, pb.AlarmType.Name(alarm.alarm)) for alarm in answer.alarms]


async def disarm(client: EtcdClient, alarm: Alarm) -> None:
    """Switch an alarm off (harmless to repeat). Raises StoreError."""
    request = pb.AlarmRequest(
        action=pb.AlarmRequest.DEACTIVATE, member_id=alarm.member_id, alarm=pb.AlarmType.Value(alarm.kind)
    )
    await client.read(lambda e: e.maintenance.Alarm, request, MEMBER_CALL_SECONDS)


async def compact(client: EtcdClient, revision: int, *, seconds: float = MEMBER_CALL_SECONDS) -> None:
    """Drop history before `revision`. Raises StoreError (RequestRefused COMPACTED: it was done already)."""
    await client.write(lambda e: e.kv.Compact, pb.CompactRequest(revision=revision, physical=True), seconds)


async def defragment(client: EtcdClient, endpoint: str) -> None:
    """Give freed space of the member at `endpoint` back; it serves nothing meanwhile. Raises StoreError."""
    await client.ask(endpoint, lambda e: e.maintenance.Defragment, pb.DefragmentRequest(), DEFRAGMENT_SECONDS)


def _guarded(guard: Guard, rpc: T) -> T:
    guard()
    return rpc


def _members(members: Iterable[pb.Member]) -> list[Member]:
    return [_member(member) for member in members]


def _member(member: pb.Member) -> Member:
    return Member(
        member.id, member.name, tuple(member.peer_urls), tuple(member.client_urls), member.is_learner
    )
