"""Calls from one host's service to another's: joining, and asking who the members are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
from akv.v1 import cluster_pb2, cluster_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port
from controlplane.cluster.errors import ClusterError, InvalidRequest, NotFound, Unavailable
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.settings import ClusterSettings

T = TypeVar("T")
Join = cluster_pb2.JoinClusterResponse
CALL_SECONDS = 5.0
UP_SECONDS = 1.0
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


def parse_via(text: str, default_port: int) -> HostPort:
    """Read the host that another one joins through. Raises InvalidRequest."""
    try:
        via = parse_host_port(text, default_port)
    except AddressError as error:
        raise InvalidRequest(
            f"{error}; name a host that is in the cluster, with :PORT when it is not 5000"
        ) from None
    literal = via.host.replace(".", "").isdigit() or ":" in via.host
    if literal and not is_loopback(via.host):
        raise InvalidRequest(
            f"{via.host} is not a loopback address, and this version does not encrypt; use 127.x.y.z"
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


async def join(target: str, request: cluster_pb2.JoinClusterRequest) -> Join:
    """Ask one host once.

    Raises Unavailable (not answered: ask again, or another), NotFound (this host is not to come back by
    itself) or ClusterError (refused).
    """
    return await _call(target, lambda stub: stub.JoinCluster(request, timeout=CALL_SECONDS))


async def members_of(target: str) -> cluster_pb2.GetMembersResponse:
    """Ask one host for the members. Raises as `join`."""
    request = cluster_pb2.GetMembersRequest()
    return await _call(target, lambda stub: stub.GetMembers(request, timeout=CALL_SECONDS))


async def cluster_of(target: str) -> cluster_pb2.GetClusterResponse:
    """Ask one host for the whole cluster. Raises as `join`."""
    request = cluster_pb2.GetClusterRequest()
    return await _call(target, lambda stub: stub.GetCluster(request, timeout=CALL_SECONDS))


async def check_peer(target: str, request: cluster_pb2.CheckPeerRequest) -> cluster_pb2.CheckPeerResponse:
    """Ask one host how another looks from there. Raises as `join`."""
    async with _channel(target) as channel:
        stub: cluster_pb2_grpc.OperatorServiceAsyncStub = cluster_pb2_grpc.OperatorServiceStub(channel)
        try:
            return await stub.CheckPeer(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _as_cluster_error(target, error) from None


async def is_up(target: str) -> bool:
    """Whether the service of a host answers now, be it in a cluster or not."""
    request = health_pb2.HealthCheckRequest()
    async with _channel(target) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=UP_SECONDS)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _channel(target: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(target, options=_OPTIONS)


async def _call(target: str, call: Callable[[cluster_pb2_grpc.ClusterServiceAsyncStub], Awaitable[T]]) -> T:
    async with _channel(target) as channel:
        stub: cluster_pb2_grpc.ClusterServiceAsyncStub = cluster_pb2_grpc.ClusterServiceStub(channel)
        try:
            return await call(stub)
        except grpc.aio.AioRpcError as error:
            raise _as_cluster_error(target, error) from None


def _as_cluster_error(target: str, error: grpc.aio.AioRpcError) -> ClusterError:
    details = error.details() or error.code().name
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return NotFound(details)
    if error.code() in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}:
        return ClusterError(details)
    return Unavailable(f"{target} did not answer ({details})")
