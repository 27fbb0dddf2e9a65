"""Who are the etcd members? Asked of the cluster hosts, in gateway.yaml's order, by GetMembers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from akv.v1 import cluster_pb2, cluster_pb2_grpc

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port
from controlplane.base.logging import get_logger
from controlplane.base.tls import TLS_OPTIONS
from controlplane.store.endpoints import CredentialsSource

log = get_logger("members")

MAX_MEMBERS = 64

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 1 << 20),
)

RefusesUuid = Callable[[str], str | None]


class MembersError(Exception):
    """A host (or every host) gave no members that can be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Members:
    """The answer of one host: its cluster and the client addresses (`host:port`) of the etcd members."""

    host: HostPort
    cluster_uuid: str
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The members to use, and for each host that was refused since the last search, why."""

    members: Members
    refused: tuple[str, ...]


class MemberSource:
    """Finds a host of our cluster. The host that answered last is asked first, then the others in order.

    `credentials` are for the hosts and for etcd; without them both must be on loopback addresses.
    """

    def __init__(
        self, hosts: Sequence[HostPort], seconds: float, credentials: CredentialsSource | None = None
    ) -> None:
        self.credentials = credentials
        self._hosts = tuple(hosts)
        self._seconds = seconds
        self._current: HostPort | None = None
        self._failures: dict[HostPort, str] = {}
        self._set_aside: set[HostPort] = set()

    def __len__(self) -> int:
        return len(self._hosts)

    def set_aside(self, members: Members) -> None:
        """Ask this host last from now on: the etcd that it named is not our cluster's."""
        self._set_aside.add(members.host)

    async def find(self, refuses: RefusesUuid) -> Found:
        """Members from the first host that answers and belongs to our cluster. Raises MembersError."""
        refused: list[str] = []
        for host in self._order():
            try:
                members = await ask_members(host, self._seconds, self.credentials)
            except MembersError as error:
                self._note(host, str(error))
                continue
            why = refuses(members.cluster_uuid)
            if why is None:
                self._settle(host)
                return Found(members, tuple(refused))
            if self._note(host, why):
                refused.append(f"{host}: {why}")
        raise MembersError("; ".join(f"{host}: {self._failures[host]}" for host in self._hosts))

    def _order(self) -> list[HostPort]:
        return sorted(self._hosts, key=lambda host: (host in self._set_aside, host != self._current))

    def _note(self, host: HostPort, why: str) -> bool:
        """Remember why `host` can't be used; True, and a line in the log, when that is news."""
        if self._failures.get(host) == why:
            return False
        self._failures[host] = why
        log.warning("Cluster host gives no members", host=str(host), why=why)
        return True

    def _settle(self, host: HostPort) -> None:
        self._current = host
        self._set_aside.discard(host)
        if self._failures.pop(host, None) is not None:
            log.info("Cluster host gives members again", host=str(host))


async def ask_members(
    host: HostPort, seconds: float, credentials: CredentialsSource | None = None
) -> Members:
    """Ask one host; without credentials over loopback only (insecure-loopback). Raises MembersError."""
    secure = credentials is not None
    try:
        async with asyncio.timeout(seconds):
            address = await _resolve(host, secure=secure)
    except TimeoutError:
        raise MembersError(f"its name was not resolved within {seconds:g} s") from None
    async with _channel(str(address), credentials) as channel:
        stub: cluster_pb2_grpc.ClusterServiceAsyncStub = cluster_pb2_grpc.ClusterServiceStub(channel)
        try:
            answer = await stub.GetMembers(cluster_pb2.GetMembersRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise MembersError(_describe(error, seconds)) from error
    return Members(host, answer.cluster_uuid, _endpoints(answer, secure=secure))


def _channel(target: str, credentials: CredentialsSource | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, credentials(), options=(*_OPTIONS, *TLS_OPTIONS))


def _describe(error: grpc.aio.AioRpcError, seconds: float) -> str:
    """One stable line: gRPC's own details carry changing addresses and times."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {seconds:g} s"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return _describe_unavailable((error.details() or "").lower())
    return f"{error.code().name.lower()}: {error.details()}"


def _describe_unavailable(details: str) -> str:
    if "verif" in details or "handshake" in details:
        return "it shows no certificate of a host of our cluster; compare cluster_ca"
    if "connect" in details and "closed" not in details:
        return "no connection"
    return "the connection was ended; with TLS: does it take our certificate?"


async def _resolve(host: HostPort, *, secure: bool) -> HostPort:
    """The host's address, which must be on this machine as long as nothing protects the connection."""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MembersError(f"its name can't be resolved: {error.strerror}") from error
    addresses = [str(info[4][0]) for info in infos]
    foreign = [address for address in addresses if not is_loopback(address)]
    if foreign and not secure:
        raise MembersError(f"{foreign[0]} is not a loopback address, as insecure-loopback demands")
    return HostPort(addresses[0], host.port)


def _endpoints(answer: cluster_pb2.GetMembersResponse, *, secure: bool) -> tuple[str, ...]:
    """Client addresses of the started members, voters alone where there are any."""
    if len(answer.members) > MAX_MEMBERS:
        raise MembersError(f"it names {len(answer.members)} members; at most {MAX_MEMBERS} are possible")
    started = [member for member in answer.members if member.started and member.client_urls]
    usable = [member for member in started if not member.learner] or started
    endpoints = [_endpoint(url, secure=secure) for member in usable for url in member.client_urls]
    if not endpoints:
        raise MembersError("it names no etcd member that was started")
    return tuple(dict.fromkeys(endpoints))


def _endpoint(url: str, *, secure: bool) -> str:
    scheme, found, rest = url.partition("://")
    wanted = "https" if secure else "http"
    if not found or scheme != wanted:
        raise MembersError(
            f"it names the etcd address {url!r}, which must begin with {wanted}://; see cluster_security"
        )
    try:
        address = parse_host_port(rest.rstrip("/"))
    except AddressError as error:
        raise MembersError(f"it names an etcd address that is none: {error}") from error
    if not secure and not is_loopback(address.host):
        raise MembersError(f"it names etcd at {address}, which is no loopback address (insecure-loopback)")
    return str(address)
