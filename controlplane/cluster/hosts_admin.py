"""Hosts in and out, as any member takes the request: JoinCluster and RemoveNode."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from urllib.parse import urlsplit

from akv.v1 import cluster_pb2

from controlplane.base.addresses import AddressError, is_loopback, parse_host_port
from controlplane.base.backoff import Deadline
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import InvalidRequest, NotFound, RequestError, TookTooLong, Unavailable
from controlplane.cluster.event_log import EventSink
from controlplane.cluster.link import NO_CLUSTER, EtcdLink
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.observe import observe
from controlplane.cluster.quorum import removal_keeps_quorum
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.cards import ClusterSnapshot, HostRecord
from controlplane.store.client import EtcdClient
from controlplane.store.codec import RecordError
from controlplane.store.errors import OutcomeUnknown, StoreError, StoreUnavailable
from controlplane.store.hosts import disable_host, update_host
from controlplane.store.joins import JoinRecord, clear_join, read_join, write_join
from controlplane.store.membership import Member, list_members
from controlplane.store.registry import forget_card
from controlplane.store.writes import delete_card

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 10.0
MAX_ADDRESSES = 16
MAX_TEXT = 256

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
log = get_logger("hosts")


class HostsAdmin:
    """Join and remove requests of one host's API."""

    def __init__(
        self, supervisor: MemberSupervisor, link: EtcdLink, events: EventSink, *, secure: bool = False
    ) -> None:
        self._supervisor = supervisor
        self._link = link
        self._events = events
        self._secure = secure

    async def join_cluster(self, request: cluster_pb2.JoinClusterRequest) -> cluster_pb2.JoinClusterResponse:
        """Note that a host without data wants a member; accepted once the leader has added it."""
        _check_join(request, secure=self._secure)
        membership = self._membership()
        try:
            return await self._join(membership, request)
        except (StoreError, RecordError) as error:
            raise Unavailable(f"{request.host} can't join now: etcd: {error}") from error

    async def remove_node(
        self, host: str, forget_cards: bool, seconds: float
    ) -> cluster_pb2.RemoveNodeResponse:
        """Disable a host and wait until the leader has removed its etcd member."""
        if not _HOST.fullmatch(host):
            raise InvalidRequest(f"{host[:80]!r} is not a host name")
        membership = self._membership()
        forgotten: list[str] = []
        deadline = Deadline(seconds)
        client = self._link.client  # taken now: when this host leaves, it has none afterwards
        record = await self._disable(membership, host, forgotten if forget_cards else None, seconds)
        await self._wait_gone(client, record, deadline)
        return cluster_pb2.RemoveNodeResponse(forgotten_serials=forgotten)

    def _membership(self) -> Membership:
        membership = self._supervisor.membership
        if membership is None:
            raise RequestError(NO_CLUSTER)
        return membership

    async def _join(
        self, membership: Membership, request: cluster_pb2.JoinClusterRequest
    ) -> cluster_pb2.JoinClusterResponse:
        if request.cluster_uuid not in {"", membership.cluster_uuid}:
            raise RequestError(
                f"it is in cluster {membership.cluster_name} ({membership.cluster_uuid}) now, not in "
                f"{request.cluster_uuid}: it has no place to give"
            )
        client = self._link.client
        picture = await self._link.snapshot(membership)
        members = await list_members(client)
        _check_place(request, picture, members)
        own = next((m for m in members if request.peer_url in m.peer_urls), None)
        for former in _others_at(request, picture):
            await update_host(client, former.host, _without_peer)
        await update_host(client, request.host, lambda present: _joined(request, present))
        answer = cluster_pb2.JoinClusterResponse(
            cluster_uuid=membership.cluster_uuid,
            cluster_name=membership.cluster_name,
            etcd_cluster_token=membership.cluster_uuid,
        )
        if own is not None and not own.started:
            answer.accepted = True
            answer.member_id = f"{own.id:016x}"
            answer.initial_cluster = _initial_cluster(picture, members, request)
            return answer
        lost = own or next((m for m in members if _is_lost_by(m, request)), None)
        answer.reason = await self._request_place(request, lost, members)
        return answer

    async def _request_place(
        self, request: cluster_pb2.JoinClusterRequest, lost: Member | None, members: list[Member]
    ) -> str:
        """Write the request down; returns what the host has to wait for."""
        client = self._link.client
        before = await read_join(client, request.host)
        join = JoinRecord(request.host, request.peer_url, lost.id if lost is not None else 0)
        if await write_join(client, join):
            log.info(
                "join requested", host=request.host, peer_url=request.peer_url, replaces=f"{join.replaces:x}"
            )
            why = "lost its etcd member and asks for another" if request.rejoin else "asks to join"
            self._events.note("host", request.host, why)
        if before is not None and before.refused:
            return f"the place that it had was taken back ({before.refused}); it waits behind the other hosts"
        return _awaited(lost, members)

    async def _disable(
        self, membership: Membership, host: str, forgotten: list[str] | None, seconds: float
    ) -> HostRecord:
        """Take the host out of the records, riding out an election of etcd's: every part can be repeated."""
        patience = Deadline(min(PATIENCE_SECONDS, seconds / 2))
        while True:
            try:
                return await self._try_disable(membership, host, forgotten)
            except (StoreUnavailable, OutcomeUnknown) as error:
                if patience.expired:
                    raise Unavailable(
                        f"{host} can't be removed now: etcd: {error}; repeat remove_node"
                    ) from error
            except (StoreError, RecordError) as error:
                raise Unavailable(f"{host} can't be removed: etcd: {error}") from error
            await asyncio.sleep(POLL_SECONDS)

    async def _try_disable(
        self, membership: Membership, host: str, forgotten: list[str] | None
    ) -> HostRecord:
        client = self._link.client
        picture = await self._link.snapshot(membership)
        record = next((known for known in picture.hosts if known.host == host), None)
        if record is None:
            known = ", ".join(sorted(known.host for known in picture.hosts))
            raise NotFound(
                f"there is no host {host} in cluster {membership.cluster_name}; its hosts are {known}"
            )
        if record.enabled:
            staying = _another_host(picture, record)
            await self._check_removal(client, record)
            await disable_host(client, host, staying, picture.revision)
        await clear_join(client, host)
        log.info("host disabled", host=host, forget_cards=forgotten is not None)
        self._events.note("host", host, "was taken out by an administrator")
        if forgotten is not None:
            await self._forget(client, picture, host, forgotten)
        return record

    async def _check_removal(self, client: EtcdClient, record: HostRecord) -> None:
        members = await list_members(client)
        member = next((m for m in members if record.addresses.get("etcd_peer") in m.peer_urls), None)
        if member is None:
            return
        if not removal_keeps_quorum(await observe(client, members), member.id):
            raise RequestError(
                f"{record.host} can't leave: the quorum would be lost, since too few of the other etcd "
                "members answer; bring them back, or add a host, first"
            )

    async def _forget(
        self, client: EtcdClient, picture: ClusterSnapshot, host: str, forgotten: list[str]
    ) -> None:
        """Take the host's cards out of the registry; a card that another host has too stays.

        The record goes last: it is what a repetition finds the card by.
        """
        elsewhere = {card.xdp_serial for card in picture.cards if card.host != host}
        for card in (card for card in picture.cards if card.host == host):
            if card.xdp_serial not in elsewhere and await forget_card(client, card.xdp_serial):
                forgotten.append(card.xdp_serial)
                log.info("card forgotten", serial=card.xdp_serial, host=host)
                self._events.note("card", card.xdp_serial, f"was forgotten with its host {host}")
            await delete_card(client, host, card.device)

    async def _wait_gone(self, client: EtcdClient, record: HostRecord, deadline: Deadline) -> None:
        """Wait for the leader's step, through the election that the end of a raft leader's member brings.

        The host that is asked may be the one that leaves: then it ends without a client.
        """
        peer_url = record.addresses.get("etcd_peer")
        while self._supervisor.membership is not None:
            try:
                if not any(peer_url in member.peer_urls for member in await list_members(client)):
                    return
            except StoreError as error:
                log.info("remove_node waits", host=record.host, reason=str(error))
            if deadline.remaining() < 1.0:
                raise TookTooLong(
                    f"{record.host} is disabled, but the leader has not removed its etcd member yet; "
                    "repeat remove_node to wait on"
                )
            await asyncio.sleep(POLL_SECONDS)


def _another_host(picture: ClusterSnapshot, leaving: HostRecord) -> str:
    """A host that stays. Raises RequestError when there is none: without one nobody could lead."""
    others = [known.host for known in picture.hosts if known.enabled and known.host != leaving.host]
    if not others:
        raise RequestError(f"{leaving.host} is the cluster's last host: stop its service instead")
    return min(others)


def _check_join(request: cluster_pb2.JoinClusterRequest, *, secure: bool) -> None:
    if not _HOST.fullmatch(request.host):
        raise InvalidRequest(f"{request.host[:80]!r} is not a host name: correct AWC_HOST")
    for url in (request.client_url, request.peer_url):
        _check_url(url, secure=secure)
    texts = [text for pair in request.addresses.items() for text in pair]
    if len(request.addresses) > MAX_ADDRESSES or any(len(text) > MAX_TEXT for text in texts):
        raise InvalidRequest(f"host {request.host} gives too many or too long addresses")
    if request.addresses.get("etcd_peer") != request.peer_url:
        raise InvalidRequest(f"host {request.host} gives two different etcd peer URLs")


def _check_url(url: str, *, secure: bool) -> None:
    parts = urlsplit(url[:MAX_TEXT])
    try:
        target = parse_host_port(parts.netloc)
    except AddressError as error:
        raise InvalidRequest(f"{url[:80]!r} is not an etcd URL: {error}") from None
    if secure and (parts.scheme != "https" or parts.path):
        raise InvalidRequest(
            f"{url[:80]!r} is not https://ADDRESS:PORT: run every host with the same AWC_SECURITY"
        )
    if not secure and (parts.scheme != "http" or parts.path or not is_loopback(target.host)):
        raise InvalidRequest(
            f"{url[:80]!r} is not http://LOOPBACK:PORT, all that is served without encryption"
        )


def _check_place(
    request: cluster_pb2.JoinClusterRequest, picture: ClusterSnapshot, members: list[Member]
) -> None:
    """Refuse a host that takes another's name or address, or comes back against an operator's will."""
    record = next((known for known in picture.hosts if known.host == request.host), None)
    if request.rejoin and (record is None or not record.enabled):
        raise NotFound(
            f"{request.host} was taken out of the cluster: run clustercli add_node on it to join again"
        )
    stands = any(request.peer_url in member.peer_urls for member in members)
    for other in _others_at(request, picture):
        if other.enabled or stands:
            raise RequestError(f"{request.peer_url} is that of {other.host}: correct AWC_ADDRESS or AWC_HOST")
    for member in members:
        if _is_lost_by(member, request):
            continue
        if member.name == request.host and request.peer_url not in member.peer_urls:
            raise RequestError(
                f"a host {request.host} is a member at {', '.join(member.peer_urls)}: choose another "
                f"AWC_HOST, or run remove_node -n {request.host} first when it moved"
            )


def _others_at(request: cluster_pb2.JoinClusterRequest, picture: ClusterSnapshot) -> list[HostRecord]:
    """Hosts of another name at the address of the one that joins."""
    same = (known for known in picture.hosts if known.addresses.get("etcd_peer") == request.peer_url)
    return [known for known in same if known.host != request.host]


def _without_peer(present: HostRecord | None) -> HostRecord | None:
    """A host that was taken out, at no address any more: another one has it. None for one that came back."""
    if present is None or present.enabled:
        return None
    return replace(present, addresses={k: v for k, v in present.addresses.items() if k != "etcd_peer"})


def _is_lost_by(member: Member, request: cluster_pb2.JoinClusterRequest) -> bool:
    """Whether this is the member that the host had: its id was given to that host alone."""
    return request.rejoin and request.lost_member_id == f"{member.id:016x}"


def _joined(request: cluster_pb2.JoinClusterRequest, present: HostRecord | None) -> HostRecord | None:
    if request.rejoin and (present is None or not present.enabled):
        return None  # disabled since the check: not to be undone
    return HostRecord(request.host, True, request.witness, dict(request.addresses))


def _initial_cluster(
    picture: ClusterSnapshot, members: list[Member], request: cluster_pb2.JoinClusterRequest
) -> str:
    """etcd's --initial-cluster: every member with a name; one that never started is named by its host."""
    hosts = {record.addresses.get("etcd_peer", ""): record.host for record in picture.hosts}
    hosts[request.peer_url] = request.host
    pairs = [
        (member.name or hosts.get(url, f"{member.id:x}"), url)
        for member in members
        for url in member.peer_urls
    ]
    return ",".join(f"{name}={url}" for name, url in pairs)


def _awaited(lost: Member | None, members: list[Member]) -> str:
    if lost is not None:
        return "the leader has to remove the lost etcd member first"
    learner = next((member.name or "a host" for member in members if member.learner), None)
    if learner is not None:
        return f"the leader adds one host at a time, and {learner} is still a learner"
    return "the leader has to add the etcd member"
