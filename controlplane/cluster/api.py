"""The cluster API on :5000: gRPC with health checking and reflection; thin handlers over the operations.

Every handler runs within a deadline of its own, the caller's if that is shorter, and every refusal names
the host that refused in the trailing metadata `awide-host`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
from akv.v1 import cluster_pb2, cluster_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controlplane.base.logging import get_logger
from controlplane.cluster.authorization import Gatekeeper
from controlplane.cluster.rpc import Handlers

READ_SECONDS = 5.0
JOIN_SECONDS = 5.0
CHANGE_SECONDS = 300.0
STOP_GRACE_SECONDS = 1.0
SERVICE = "akv.v1.ClusterService"

# What a stranger can cost: bounded messages, few streams a connection, silent connections closed. An agent's
# description of a large node, or the map of a large fabric, is the largest message.
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.keepalive_time_ms", 20000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),  # a keepalive ping's answer; a minute by default
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.max_connection_idle_ms", 300000),
]
# Each node's agent holds one for as long as it lives.
_MAX_CALLS = 8192

# Adds one more service to the server and returns its full name.
Registration = Callable[[grpc.aio.Server], str]

log = get_logger("cluster-api")


class Operations(Protocol):
    """What the API offers. Each raises RequestError with the sentence that the caller gets."""

    async def get_members(self) -> cluster_pb2.GetMembersResponse:
        """The etcd members."""

    async def get_cluster(self) -> cluster_pb2.GetClusterResponse:
        """Hosts, cards, health, quorum."""

    async def create_cluster(self, name: str, seconds: float) -> cluster_pb2.CreateClusterResponse:
        """Make this host the first member."""

    async def add_node(self, via_host: str, token: str, seconds: float) -> cluster_pb2.AddNodeResponse:
        """Make this host join."""

    async def join_cluster(self, request: cluster_pb2.JoinClusterRequest) -> cluster_pb2.JoinClusterResponse:
        """Take another host's request to join."""

    async def remove_node(
        self, host: str, forget_cards: bool, seconds: float
    ) -> cluster_pb2.RemoveNodeResponse:
        """Take a host out."""


class ClusterServicer(cluster_pb2_grpc.ClusterServiceServicer):
    """gRPC handlers of one host."""

    def __init__(self, host: str, operations: Operations) -> None:
        self._run = Handlers(host).run
        self._operations = operations

    async def GetMembers(self, request: Any, context: Any) -> cluster_pb2.GetMembersResponse:
        """The etcd members."""
        return await self._run(context, READ_SECONDS, lambda _: self._operations.get_members())

    async def GetCluster(self, request: Any, context: Any) -> cluster_pb2.GetClusterResponse:
        """Hosts, cards, health, quorum."""
        return await self._run(context, READ_SECONDS, lambda _: self._operations.get_cluster())

    async def CreateCluster(self, request: Any, context: Any) -> cluster_pb2.CreateClusterResponse:
        """Make this host the first member."""
        return await self._run(
            context, CHANGE_SECONDS, lambda left: self._operations.create_cluster(request.name, left)
        )

    async def AddNode(self, request: Any, context: Any) -> cluster_pb2.AddNodeResponse:
        """Make this host join."""
        return await self._run(
            context,
            CHANGE_SECONDS,
            lambda left: self._operations.add_node(request.via_host, request.token, left),
        )

    async def JoinCluster(self, request: Any, context: Any) -> cluster_pb2.JoinClusterResponse:
        """Take another host's request to join."""
        return await self._run(context, JOIN_SECONDS, lambda _: self._operations.join_cluster(request))

    async def RemoveNode(self, request: Any, context: Any) -> cluster_pb2.RemoveNodeResponse:
        """Take a host out."""
        return await self._run(
            context,
            CHANGE_SECONDS,
            lambda left: self._operations.remove_node(request.host, request.forget_cards, left),
        )


class ClusterServer:
    """Serves the API of one host, and the services that `others` add, on one address.

    `gatekeeper` sees every call first; without `credentials` nothing is encrypted and nobody proven.
    """

    def __init__(
        self,
        endpoint: str,
        host: str,
        operations: Operations,
        gatekeeper: Gatekeeper,
        others: Sequence[Registration] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._server = grpc.aio.server(
            options=_OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS, interceptors=(gatekeeper,)
        )
        self._health = health.aio.HealthServicer()
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterServicer(host, operations), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = (SERVICE, *(register(self._server) for register in others))
        names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> None:
        """Bind and serve. OSError when the address is taken."""
        try:
            port = self._bind()
        except RuntimeError as error:
            raise OSError(f"{self._endpoint} can't be bound") from error
        if port == 0:
            raise OSError(f"{self._endpoint} can't be bound")
        await self._server.start()
        for name in (*self._names, ""):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        log.info("cluster API serves", listen=self._endpoint)

    def _bind(self) -> int:
        if self._credentials is None:
            return self._server.add_insecure_port(self._endpoint)
        return self._server.add_secure_port(self._endpoint, self._credentials)

    async def stop(self) -> None:
        """Let calls end for a moment, then close."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_GRACE_SECONDS)
