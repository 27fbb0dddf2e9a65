"""FleetService: the operator's calls, answered by the leader; a standby hands them on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import grpc
from akv.v1 import fleet_pb2 as pb
from akv.v1 import fleet_pb2_grpc

from controlplane.base.logging import get_logger
from controlplane.base.pki import Role
from controlplane.base.request_errors import Denied, RequestError, Unauthenticated, Unavailable
from controlplane.base.tls import NoPeerError, peer_identity
from controlplane.fleet.forwarding import FORWARDED_METADATA, Forwarder
from controlplane.fleet.operations import Operations
from controlplane.fleet.requests import MAX_TEST_SECONDS, test_limit
from controlplane.fleet.term import Term
from controlplane.store.errors import StoreError

READ_SECONDS = 10.0
CHANGE_SECONDS = 30.0
ASK_SECONDS = 200.0
# More than a question's own deadline, so that the answer tells which node was silent.
ANSWER_SECONDS = 10.0
# As the cluster's own service: who refused, in the trailing metadata.
HOST_METADATA = "awide-host"

R = TypeVar("R")

log = get_logger("fleet-api")


class FleetServicer(fleet_pb2_grpc.FleetServiceServicer):
    """gRPC handlers of one host; `term` is None while another host leads."""

    def __init__(
        self,
        host: str,
        term: Callable[[], Term | None],
        leader_api: Callable[[], str],
        forwarder: Forwarder,
        *,
        require_identity: bool,
    ) -> None:
        self._host = host
        self._term = term
        self._leader_api = leader_api
        self._forwarder = forwarder
        self._require_identity = require_identity

    async def ListNodes(self, request: Any, context: Any) -> pb.ListNodesResponse:
        """Every node, in short."""

        async def work(operations: Operations) -> pb.ListNodesResponse:
            return operations.list_nodes(self._host)

        return await self._run("ListNodes", request, context, READ_SECONDS, work)

    async def GetNode(self, request: Any, context: Any) -> pb.GetNodeResponse:
        """All of one node."""

        async def work(operations: Operations) -> pb.GetNodeResponse:
            return operations.get_node(request.node_id)

        return await self._run("GetNode", request, context, READ_SECONDS, work)

    async def GetLogs(self, request: Any, context: Any) -> pb.GetLogsResponse:
        """Lines of a node's log."""
        return await self._run("GetLogs", request, context, CHANGE_SECONDS, lambda o: o.get_logs(request))

    async def ListShards(self, request: Any, context: Any) -> pb.ListShardsResponse:
        """Shards, wanted and observed."""

        async def work(operations: Operations) -> pb.ListShardsResponse:
            return operations.list_shards(request.model)

        return await self._run("ListShards", request, context, READ_SECONDS, work)

    async def ApplyModel(self, request: Any, context: Any) -> pb.ApplyModelResponse:
        """Write a model."""
        log.info("apply model asked for", model=request.model.name, peer=context.peer())
        return await self._run(
            "ApplyModel", request, context, CHANGE_SECONDS, lambda o: o.apply_model(request.model)
        )

    async def GetModels(self, request: Any, context: Any) -> pb.GetModelsResponse:
        """The catalogue."""

        async def work(operations: Operations) -> pb.GetModelsResponse:
            return operations.get_models(request.name)

        return await self._run("GetModels", request, context, READ_SECONDS, work)

    async def DeleteModel(self, request: Any, context: Any) -> pb.DeleteModelResponse:
        """Take a model out."""
        log.info("delete model asked for", model=request.name, peer=context.peer())
        return await self._run(
            "DeleteModel", request, context, CHANGE_SECONDS, lambda o: o.delete_model(request.name)
        )

    async def ScaleModel(self, request: Any, context: Any) -> pb.ScaleModelResponse:
        """Set the number of replicas."""
        log.info("scale model asked for", model=request.name, replicas=request.replicas, peer=context.peer())
        return await self._run(
            "ScaleModel",
            request,
            context,
            CHANGE_SECONDS,
            lambda o: o.scale_model(request.name, request.replicas),
        )

    async def DrainNode(self, request: Any, context: Any) -> pb.DrainNodeResponse:
        """Empty a node, or give it back."""
        log.info("drain node asked for", node=request.node_id, undo=request.undo, peer=context.peer())
        return await self._run(
            "DrainNode",
            request,
            context,
            CHANGE_SECONDS,
            lambda o: o.drain_node(request.node_id, undo=request.undo),
        )

    async def SetEngines(self, request: Any, context: Any) -> pb.SetEnginesResponse:
        """What every node should have installed."""
        if not request.show:
            log.info(
                "set engines asked for", engines=[e.engine for e in request.engines], peer=context.peer()
            )
        return await self._run(
            "SetEngines", request, context, CHANGE_SECONDS, lambda o: o.set_engines(request)
        )

    async def RemoveNodeWeights(self, request: Any, context: Any) -> pb.RemoveNodeWeightsResponse:
        """Propose the deletion of weights."""
        log.info("remove weights asked for", node=request.node_id, peer=context.peer())
        return await self._run(
            "RemoveNodeWeights", request, context, ASK_SECONDS, lambda o: o.remove_weights(request)
        )

    async def ForgetNode(self, request: Any, context: Any) -> pb.ForgetNodeResponse:
        """Forget a node."""
        log.info("forget node asked for", node=request.node_id, peer=context.peer())
        return await self._run(
            "ForgetNode", request, context, CHANGE_SECONDS, lambda o: o.forget_node(request.node_id)
        )

    async def ScanFabric(self, request: Any, context: Any) -> pb.ScanFabricResponse:
        """Map a fabric."""
        log.info("fabric scan asked for", node=request.node_id, hca=request.hca, peer=context.peer())
        return await self._run("ScanFabric", request, context, ASK_SECONDS, lambda o: o.fabric.scan(request))

    async def ListFabricMaps(self, request: Any, context: Any) -> pb.ListFabricMapsResponse:
        """The leader's own maps."""

        async def work(operations: Operations) -> pb.ListFabricMapsResponse:
            return operations.fabric.maps(request.fabric)

        return await self._run("ListFabricMaps", request, context, READ_SECONDS, work)

    async def PairRails(self, request: Any, context: Any) -> pb.PairRailsResponse:
        """The rails between two nodes."""

        async def work(operations: Operations) -> pb.PairRailsResponse:
            return operations.fabric.pair(request)

        return await self._run("PairRails", request, context, READ_SECONDS, work)

    async def TestRail(self, request: Any, context: Any) -> pb.TestRailResponse:
        """Measure one rail."""
        nodes = f"{request.client_node} {request.server_node}"
        log.info("rail test asked for", nodes=nodes, hca=request.rail.client_hca, peer=context.peer())
        limit = test_limit(min(request.seconds, MAX_TEST_SECONDS)) + ANSWER_SECONDS
        return await self._run("TestRail", request, context, limit, lambda o: o.fabric.test(request))

    async def _run(
        self,
        method: str,
        request: Any,
        context: Any,
        seconds: float,
        work: Callable[[Operations], Awaitable[R]],
    ) -> R:
        """Do the work here or at the leader, within `seconds` or the caller's deadline."""
        left = context.time_remaining()
        limit = seconds if left is None else min(seconds, left)
        refused_by = self._host
        try:
            self._authorize(context)
            async with asyncio.timeout(limit):
                term = self._term()
                if term is not None:
                    return await work(Operations(term))
                return cast(R, await self._forward(method, request, context, limit))
        except RequestError as error:
            code, sentence = error.code, str(error)
        except StoreError as error:
            code, sentence = grpc.StatusCode.UNAVAILABLE, f"etcd: {error}; ask again"
        except grpc.aio.AioRpcError as error:
            code, sentence = error.code(), error.details() or ""
            refused_by = str(dict(error.trailing_metadata() or ()).get(HOST_METADATA, self._leader_api()))
        except TimeoutError:
            code, sentence = grpc.StatusCode.DEADLINE_EXCEEDED, f"not done within {limit:.1f} s; ask again"
        await context.abort(code, sentence, ((HOST_METADATA, refused_by),))
        raise AssertionError("abort always raises")

    async def _forward(self, method: str, request: Any, context: Any, seconds: float) -> Any:
        if any(key == FORWARDED_METADATA for key, _ in context.invocation_metadata()):
            raise Unavailable(f"{self._host} does not lead (any more): ask again in a few seconds")
        return await self._forwarder.call(self._leader_api(), method, request, seconds)

    def _authorize(self, context: Any) -> None:
        """Operators, and hosts that hand on what an operator asked. Raises RequestError."""
        try:
            peer = peer_identity(context)
        except NoPeerError as error:
            if not self._require_identity:
                return
            raise Unauthenticated(str(error)) from None
        if peer.role not in {Role.ADMIN, Role.HOST}:
            raise Denied(f"{peer} may not administer the fleet: use an admin's certificate")
