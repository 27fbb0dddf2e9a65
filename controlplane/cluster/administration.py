"""What an administrator asks of a host, and what a joining host asks of another."""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid

from akv.v1 import cluster_pb2

from controlplane.base.addresses import HostPort
from controlplane.base.backoff import Deadline
from controlplane.base.join_token import JoinToken, JoinTokenError, parse_join_token
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import InvalidRequest, RequestError, TookTooLong, Unavailable
from controlplane.cluster import member_client
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.enrollment import enroll
from controlplane.cluster.issuer import Issuer
from controlplane.cluster.member_places import place_of
from controlplane.cluster.membership_file import Membership, PeerHost
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.cluster.trust import Trust

JOIN_SECONDS = 240.0
JOIN_POLL_SECONDS = 0.5

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})", re.ASCII)
log = get_logger("administration")


class Administration:
    """create_cluster and add_node, on the host that they are asked of."""

    def __init__(
        self, settings: ClusterSettings, supervisor: MemberSupervisor, trust: Trust, issuer: Issuer
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._trust = trust
        self._issuer = issuer
        self._joining: asyncio.Task[cluster_pb2.AddNodeResponse] | None = None
        self._progress = ""

    async def create_cluster(self, name: str, seconds: float) -> cluster_pb2.CreateClusterResponse:
        """Make this host the first member; asked again with the same name it goes on, or says it is done."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name[:80]!r} is no name for a cluster: use 1 to 63 letters, digits, '.', '-' and '_'"
            )
        if self._joining is not None:
            raise RequestError(f"{self._settings.host} is joining a cluster: wait for add_node to end")
        present = self._supervisor.membership
        if present is not None and present.cluster_name != name:
            raise RequestError(
                f"{self._settings.host} is in cluster {present.cluster_name} ({present.cluster_uuid}): "
                "take it out with remove_node first"
            )
        if present is None:
            place = self._first_place(name)
            if self._trust.secure:
                self._trust.create_authority(name, place.cluster_uuid)
            self._take_place(place)
        membership = await self._settled(seconds)
        answer = cluster_pb2.CreateClusterResponse(cluster_uuid=membership.cluster_uuid)
        if present is None and self._trust.secure:
            answer.join_token = (await self._issuer.create_token(0)).token
        return answer

    async def add_node(self, via_host: str, token: str, seconds: float) -> cluster_pb2.AddNodeResponse:
        """Make this host join the cluster of another; it goes on when the caller gives up waiting."""
        via = member_client.parse_via(via_host, default_port=5000, secure=self._trust.secure)
        given = self._read_token(token)
        if self._joining is None:
            self._joining = asyncio.create_task(self._enroll_and_join(via, given), name="add-node")
            self._joining.add_done_callback(self._join_ended)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._joining)
        except TimeoutError:
            raise TookTooLong(
                f"{self._settings.host} has not joined yet ({self._progress or 'it was just begun'}); "
                "it goes on, and add_node can be repeated"
            ) from None

    async def close(self) -> None:
        """End a join that is under way."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)

    def _join_ended(self, task: asyncio.Task[cluster_pb2.AddNodeResponse]) -> None:
        self._joining = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("add_node failed", reason=str(error))

    def _read_token(self, text: str) -> JoinToken | None:
        """The token, where one is needed. Raises RequestError."""
        if not self._trust.secure:
            if text:
                raise InvalidRequest(
                    "a token is for AWC_SECURITY=mtls: set it on every host, or give no token"
                )
            return None
        if text:
            try:
                return parse_join_token(text)
            except JoinTokenError as error:
                raise InvalidRequest(str(error)) from None
        if not self._trust.ready:
            raise InvalidRequest(
                f"{self._settings.host} has no certificate of the cluster: give add_node a --token, which "
                "create_cluster, or clustercli pki token on a host of the cluster, makes"
            )
        return None

    async def _enroll_and_join(self, via: HostPort, token: JoinToken | None) -> cluster_pb2.AddNodeResponse:
        """Get this host's certificate where a token is given; a member has one, and keeps it."""
        if token is not None and self._supervisor.membership is None:
            enrolled = await enroll(via.host, token, self._settings.host, self._settings.address)
            self._trust.install(
                enrolled.ca_pem, enrolled.certificate_pem, enrolled.key_pem, enrolled.ca_key_pem
            )
        return await self._join(str(via))

    async def _join(self, via: str) -> cluster_pb2.AddNodeResponse:
        deadline = Deadline(JOIN_SECONDS)
        cluster = await member_client.cluster_of(self._trust, via)
        if self._is_member_of(cluster):
            await self._settled(deadline.remaining())
            return cluster_pb2.AddNodeResponse(cluster_uuid=cluster.cluster_uuid, cluster_name=cluster.name)
        await self._until_left(cluster.name, deadline)
        peers = tuple(
            PeerHost(host.host, host.addresses["api"], host.addresses.get("etcd_client", ""))
            for host in cluster.hosts
            if host.enabled and host.host != self._settings.host and "api" in host.addresses
        )
        answer = await self._ask_until_accepted([via, *(peer.api for peer in peers)], deadline)
        self._take_place(place_of(self._settings, answer, peers))
        self._progress = "its etcd member starts"
        await self._settled(deadline.remaining())
        return cluster_pb2.AddNodeResponse(cluster_uuid=answer.cluster_uuid, cluster_name=answer.cluster_name)

    def _first_place(self, name: str) -> Membership:
        host, peer_url = self._settings.host, self._settings.peer_url
        return Membership("creating", host, peer_url, str(uuid.uuid4()), name, f"{host}={peer_url}")

    def _take_place(self, place: Membership) -> None:
        try:
            self._supervisor.take_place(place)
        except OSError as error:
            raise RequestError(
                f"{self._settings.host} can't write down its place in the cluster: {error}; correct "
                f"{self._settings.state_dir} and ask again"
            ) from error

    def _is_member_of(self, cluster: cluster_pb2.GetClusterResponse) -> bool:
        """Whether there is nothing to do; not so while the host is being taken out of that cluster.

        Raises RequestError when the host is in another one.
        """
        present = self._supervisor.membership
        if present is None:
            return False
        host = self._settings.host
        if present.cluster_uuid != cluster.cluster_uuid:
            raise RequestError(
                f"{host} is in cluster {present.cluster_name} ({present.cluster_uuid}), not in "
                f"{cluster.name} ({cluster.cluster_uuid}): take it out with remove_node first"
            )
        return any(record.host == host and record.enabled for record in cluster.hosts)

    async def _until_left(self, cluster_name: str, deadline: Deadline) -> None:
        """Until this host has noticed that remove_node took it out: it does so a little after the others."""
        while self._supervisor.membership is not None:
            self._progress = f"it is being taken out of {cluster_name}"
            if deadline.expired:
                raise TookTooLong(
                    f"{self._settings.host} is still being taken out of {cluster_name} after "
                    f"{JOIN_SECONDS:g} s: see its log, and repeat remove_node"
                )
            await asyncio.sleep(min(JOIN_POLL_SECONDS, self._settings.cycle_seconds))

    async def _ask_until_accepted(self, hosts: list[str], deadline: Deadline) -> member_client.Join:
        """Ask the host that was named, and the next of its cluster's hosts when one does not answer."""
        request = member_client.join_request(self._settings)
        said = OnChange()
        turns = itertools.cycle(dict.fromkeys(hosts))
        asked = next(turns)
        while True:
            try:
                answer = await member_client.join(self._trust, asked, request)
                self._progress = answer.reason
            except Unavailable as error:
                answer, self._progress = None, str(error)
                asked = next(turns)
            if answer is not None and answer.accepted:
                return answer
            if said.changed(self._progress):
                log.info("add_node waits", reason=self._progress)
            if deadline.expired:
                raise TookTooLong(
                    f"{self._settings.host} is not let in after {JOIN_SECONDS:g} s: {self._progress}"
                )
            await asyncio.sleep(min(JOIN_POLL_SECONDS, self._settings.cycle_seconds))

    async def _settled(self, seconds: float) -> Membership:
        try:
            return await self._supervisor.wait_member(seconds)
        except TimeoutError:
            problem = self._supervisor.problem or "it has not answered yet"
            raise TookTooLong(
                f"the etcd member of {self._settings.host} does not run yet: {problem}; see "
                f"{self._settings.log_dir / 'etcd.log'}"
            ) from None
