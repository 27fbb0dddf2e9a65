"""What any host answers about the cluster: GetMembers and GetCluster."""

from __future__ import annotations

from collections.abc import Iterable

from akv.v1 import cluster_pb2

from controlplane.base.request_errors import RequestError, Unavailable
from controlplane.cluster.card_views import card_problems
from controlplane.cluster.link import NO_CLUSTER, EtcdLink
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.quorum import tolerated_failures
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.cards import CardRecord, ClusterSnapshot, Health, HealthRecord, HostRecord
from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.slots import SlotPlan, fingerprint, plan_slots
from controlplane.store.checks import read_checks
from controlplane.store.client import EtcdClient
from controlplane.store.election import read_leader
from controlplane.store.errors import StoreError
from controlplane.store.membership import Member, list_members

DEFAULT_NUM_DBS = 128
# Longer than an election of etcd's takes, since an operator waits rather than asks again.
CLUSTER_SECONDS = 3.0
NO_ANSWER = "etcd does not answer (is its quorum lost?)"


class Queries:
    """Reads for one host's API."""

    def __init__(self, supervisor: MemberSupervisor, link: EtcdLink) -> None:
        self._supervisor = supervisor
        self._link = link
        self._last: cluster_pb2.GetMembersResponse | None = None

    async def get_members(self) -> cluster_pb2.GetMembersResponse:
        """The members, from etcd; without a quorum the last known ones: gateways only want addresses."""
        membership = self._membership()
        try:
            answer = await self._read_members(membership)
            answer.current = True
        except (StoreError, Unavailable):
            if self._last is None or self._last.cluster_uuid != membership.cluster_uuid:
                self._last = await self._local_members(membership)
            return self._last
        self._last = cluster_pb2.GetMembersResponse()
        self._last.CopyFrom(answer)
        self._last.current = False
        return answer

    async def get_cluster(self) -> cluster_pb2.GetClusterResponse:
        """The whole picture at one revision, from etcd only: what may be old is not shown as present."""
        membership = self._membership()
        try:
            picture = await self._link.snapshot(membership, CLUSTER_SECONDS)
            members = await list_members(self._link.client, seconds=CLUSTER_SECONDS)
            leader = await read_leader(self._link.client, seconds=CLUSTER_SECONDS)
            checks = await read_checks(self._link.client, seconds=CLUSTER_SECONDS)
        except StoreError as error:
            raise Unavailable(
                f"{NO_ANSWER}: {error}; see the state of the members with get_members"
            ) from error
        answer = cluster_response(membership, picture, members, leader.name if leader is not None else "")
        answer.card_problems.extend(card_problems(picture, checks))
        return answer

    def _membership(self) -> Membership:
        membership = self._supervisor.membership
        if membership is None:
            raise RequestError(NO_CLUSTER)
        return membership

    async def _read_members(self, membership: Membership) -> cluster_pb2.GetMembersResponse:
        client = self._link.client
        picture = await self._link.snapshot(membership)
        members = await list_members(client)
        leader = await read_leader(client)
        hosts = {record.addresses.get("etcd_peer", ""): record.host for record in picture.hosts}
        return members_response(membership, members, hosts, leader.name if leader is not None else "")

    async def _local_members(self, membership: Membership) -> cluster_pb2.GetMembersResponse:
        """What the nearest member remembers, quorum or not. It is asked of this cluster's own etcd only."""
        client: EtcdClient = self._link.client
        try:
            members = await list_members(client, linearizable=False)
        except StoreError as error:
            problem = self._supervisor.problem
            raise Unavailable(f"{NO_ANSWER}: {error}" + (f"; {problem}" if problem else "")) from error
        return members_response(membership, members, {}, "")


def members_response(
    membership: Membership, members: Iterable[Member], hosts: dict[str, str], leader: str
) -> cluster_pb2.GetMembersResponse:
    """Voters first, then learners. `hosts` maps peer URL to host, for members that never started."""
    listed = [
        cluster_pb2.Member(
            host=hosts.get(member.peer_urls[0] if member.peer_urls else "", member.name),
            member_id=f"{member.id:016x}",
            client_urls=member.client_urls,
            peer_urls=member.peer_urls,
            learner=member.learner,
            started=member.started,
        )
        for member in sorted(members, key=lambda m: (m.learner, m.name, m.id))
    ]
    return cluster_pb2.GetMembersResponse(
        cluster_uuid=membership.cluster_uuid,
        cluster_name=membership.cluster_name,
        members=listed,
        leader=leader,
    )


def cluster_response(
    membership: Membership, picture: ClusterSnapshot, members: list[Member], leader: str
) -> cluster_pb2.GetClusterResponse:
    """Put one snapshot and the members into the answer."""
    plan = plan_slots(picture.registry)
    voters = sum(not member.learner for member in members)
    return cluster_pb2.GetClusterResponse(
        cluster_uuid=membership.cluster_uuid,
        name=membership.cluster_name,
        leader=leader,
        hosts=[
            _host(record, picture, plan) for record in sorted(picture.hosts, key=lambda record: record.host)
        ],
        etcd_quorum=cluster_pb2.EtcdQuorum(
            members=voters,
            tolerated_failures=tolerated_failures(voters),
            learners=len(members) - voters,
        ),
        fingerprint=fingerprint(LAYOUT_VERSION, DEFAULT_NUM_DBS, plan.slots),
    )


def _host(record: HostRecord, picture: ClusterSnapshot, plan: SlotPlan) -> cluster_pb2.ClusterHost:
    health = {r.device: r for r in picture.health if r.host == record.host}
    cards = sorted((c for c in picture.cards if c.host == record.host), key=lambda card: card.device)
    return cluster_pb2.ClusterHost(
        host=record.host,
        enabled=int(record.enabled),
        witness=record.witness,
        cards=[_card(card, health.get(card.device), plan) for card in cards],
        addresses=record.addresses,
    )


def _card(card: CardRecord, health: HealthRecord | None, plan: SlotPlan) -> cluster_pb2.ClusterCard:
    known = health if health is not None and health.xdp_serial == card.xdp_serial else None
    slot = plan.slot_of(card.xdp_serial)
    return cluster_pb2.ClusterCard(
        device=card.device,
        xdp_serial=card.xdp_serial,
        nqn=card.nqn,
        health_xdp=int(known.health_xdp if known is not None else Health.UNKNOWN),
        reason=known.reason if known is not None else "the leader has not judged it yet",
        since=known.since if known is not None else 0.0,
        addresses=[f"{path.transport}:{_host_port(path.traddr, path.trsvcid)}" for path in card.paths],
        slot=slot if slot is not None else -1,
        state=card.state,
    )


def _host_port(traddr: str, trsvcid: str) -> str:
    return f"[{traddr}]:{trsvcid}" if ":" in traddr else f"{traddr}:{trsvcid}"
