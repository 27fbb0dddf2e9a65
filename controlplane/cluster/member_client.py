"""Calls from one host's service to another's: joining, and asking who the members are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from akv.v1 import cluster_pb2, cluster_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port
from controlplane.base.request_errors import InvalidRequest, NotFound, RequestError, Unavailable
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust

T = TypeVar("T")
Join = cluster_pb2.JoinClusterResponse
CALL_SECONDS = 5.0
UP_SECONDS = 1.0
_REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


def parse_via(text: str, default_port: int, *, secure: bool) -> HostPort:
    """Read the host that another one joins through. Raises InvalidRequest."""
    try:
        via = parse_host_port(text, default_port)
    except AddressError as error:
        raise InvalidRequest(
            f"{error}; name a host that is in the cluster, with :PORT when it is not 5000"
        ) from None
    if secure:
        return via
    literal = via.host.replace(".", "").isdigit() or ":" in via.host
    if literal and not is_loopback(via.host):
        raise InvalidRequest(
            f"{via.host} is not a loopback address, as AWC_SECURITY=insecure-loopback demands; use 127.x.y.z"
        )
    return via


def join_request(
    settings: ClusterSettings, *, replaces: Membership | None = None
) -> cluster_pb2.JoinClusterRequest:
    """Return this host's request for a fresh member, in place of the one of `replaces` if it had one."""
    return cluster_pb2.JoinClusterRequest(
        host=settings.host,
        client_url=settings.client_url,
        peer_url=settings.peer_url,
        witness=settings.witness,
        addresses=settings.addresses,
        rejoin=replaces is not None,
        cluster_uuid=replaces.cluster_uuid if replaces is not None else "",
        lost_member_id=f"{replaces.member_id:016x}" if replaces is not None else "",
    )


async def join(trust: Trust, target: str, request: cluster_pb2.JoinClusterRequest) -> Join:
    """Ask one host once.

    Raises Unavailable (not answered: ask again, or another), NotFound (this host is not to come back by
    itself) or RequestError (refused).
    """
    return await _call(trust, target, lambda stub: stub.JoinCluster(request, timeout=CALL_SECONDS))


async def members_of(trust: Trust, target: str) -> cluster_pb2.GetMembersResponse:
    """Ask one host for the members. Raises as `join`."""
    request = cluster_pb2.GetMembersRequest()
    return await _call(trust, target, lambda stub: stub.GetMembers(request, timeout=CALL_SECONDS))


async def cluster_of(trust: Trust, target: str) -> cluster_pb2.GetClusterResponse:
    """Ask one host for the whole cluster. Raises as `join`."""
    request = cluster_pb2.GetClusterRequest()
    return await _call(trust, target, lambda stub: stub.GetCluster(request, timeout=CALL_SECONDS))


async def check_peer(
    trust: Trust, target: str, request: cluster_pb2.CheckPeerRequest
) -> cluster_pb2.CheckPeerResponse:
    """Ask one host how another looks from there. Raises as `join`."""
    async with trust.channel(target) as channel:
        stub: cluster_pb2_grpc.OperatorServiceAsyncStub = cluster_pb2_grpc.OperatorServiceStub(channel)
        try:
            return await stub.CheckPeer(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _as_cluster_error(target, error) from None


async def is_up(trust: Trust, target: str) -> bool:
    """Whether the service of a host answers now, be it in a cluster or not."""
    request = health_pb2.HealthCheckRequest()
    try:
        async with trust.channel(target) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=UP_SECONDS)
    except (RequestError, grpc.aio.AioRpcError):
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _call(
    trust: Trust, target: str, call: Callable[[cluster_pb2_grpc.ClusterServiceAsyncStub], Awaitable[T]]
) -> T:
    async with trust.channel(target) as channel:
        stub: cluster_pb2_grpc.ClusterServiceAsyncStub = cluster_pb2_grpc.ClusterServiceStub(channel)
        try:
            return await call(stub)
        except grpc.aio.AioRpcError as error:
            raise _as_cluster_error(target, error) from None


def _as_cluster_error(target: str, error: grpc.aio.AioRpcError) -> RequestError:
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return NotFound(details)
    if error.code() in _REFUSALS:
        return RequestError(details)
    return Unavailable(f"{target} did not answer ({details})")
