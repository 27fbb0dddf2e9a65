"""What operators can ask of the fleet, on the present term. Methods raise RequestError, or StoreError."""

from __future__ import annotations

from dataclasses import replace

from akv.v1 import agent_pb2
from akv.v1 import fleet_pb2 as pb

from controlplane.base.request_errors import InvalidRequest, NotFound, RequestError
from controlplane.fleet import documents
from controlplane.fleet.fabric_operations import FabricOperations
from controlplane.fleet.inventory import Node
from controlplane.fleet.term import Term
from controlplane.model.catalogue import CatalogueError, ModelSpec, check_model, engine_problem
from controlplane.store.fleet_records import EngineWanted

MAX_ENGINES = 64


class Operations:
    """The calls of one term."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._records = term.ledger.records
        self.fabric = FabricOperations(term.inventory, term.requests, term.scans)

    def list_nodes(self, leader: str) -> pb.ListNodesResponse:
        """Every node, in short."""
        nodes = sorted(self._term.inventory.nodes.items())
        places = documents.places_by_node(self._term)
        return pb.ListNodesResponse(
            leader=leader,
            nodes=[documents.node_summary(self._term, node, places) for _, node in nodes],
            waiting=self._term.reconciler.waiting,
        )

    def get_node(self, node_id: str) -> pb.GetNodeResponse:
        """All of one node."""
        return documents.node_details(self._term, self._node(node_id))

    async def get_logs(self, request: pb.GetLogsRequest) -> pb.GetLogsResponse:
        """Lines of one of a node's logs."""
        self._node(request.node_id)
        answer = await self._term.requests.logs(
            request.node_id, request.source, request.lines, request.cursor
        )
        return pb.GetLogsResponse(lines=answer.lines, sources=answer.sources, cursor=answer.cursor)

    def list_shards(self, model: str) -> pb.ListShardsResponse:
        """Shards, and the replicas for which there is no room."""
        if model:
            self._known(model)
        unplaced = sorted(self._term.reconciler.unplaced.items())
        return pb.ListShardsResponse(
            shards=documents.shards(self._term, model),
            unplaced=[
                pb.Unplaced(replica_id=replica, model=replica.rpartition("/")[0], reason=reason)
                for replica, reason in unplaced
                if model in {"", replica.rpartition("/")[0]}
            ],
            waiting=self._term.reconciler.waiting,
        )

    def get_models(self, name: str) -> pb.GetModelsResponse:
        """One model, or all."""
        wanted = [self._model(name)] if name else [spec for _, spec in sorted(self._records.models.items())]
        return pb.GetModelsResponse(models=map(documents.model_message, wanted))

    async def apply_model(self, message: pb.Model) -> pb.ApplyModelResponse:
        """Write a model, if it differs from the one that is there."""
        try:
            spec = check_model(documents.read_model(message))
        except CatalogueError as error:
            raise InvalidRequest(f"model not taken: {error}") from None
        async with self._term.catalogue:
            return await self._write(spec)

    async def scale_model(self, name: str, replicas: int) -> pb.ScaleModelResponse:
        """Set how many replicas are wanted."""
        async with self._term.catalogue:
            try:
                spec = check_model(replace(self._model(name), replicas=replicas))
            except CatalogueError as error:
                raise InvalidRequest(f"model not changed: {error}") from None
            return pb.ScaleModelResponse(model=(await self._write(spec)).model)

    async def delete_model(self, name: str) -> pb.DeleteModelResponse:
        """Take a model out of the catalogue."""
        async with self._term.catalogue:
            self._model(name)
            await self._term.ledger.delete_model(name)
        self._term.wake.set()
        return pb.DeleteModelResponse()

    async def drain_node(self, node_id: str, *, undo: bool) -> pb.DrainNodeResponse:
        """Keep placement away from a node, and empty it; or give it back."""
        node = self._node(node_id)
        await self._term.ledger.put_nodes([replace(node.record, draining=not undo)])
        node.draining = not undo
        self._term.wake.set()
        there = [
            place.shard_id
            for assignment in self._records.assignments.values()
            for place in assignment.places
            if place.node_id == node_id
        ]
        return pb.DrainNodeResponse(shard_ids=[] if undo else sorted(there))

    async def set_engines(self, request: pb.SetEnginesRequest) -> pb.SetEnginesResponse:
        """Set, or only show, what every node should have installed, and how far each node is."""
        if not request.show:
            await self._term.ledger.put_engines(_engines(request))
            self._term.provision_all()
        wanted = self._records.engines
        return pb.SetEnginesResponse(
            engines=[
                agent_pb2.EngineWant(engine=e.engine, version=e.version, variant=e.variant) for e in wanted
            ],
            nodes=[
                pb.NodeProvision(
                    node_id=node_id,
                    engines=node.facts.provision,
                    not_installable=[e.engine for e in wanted if e.engine not in node.facts.installable],
                )
                for node_id, node in sorted(self._term.inventory.nodes.items())
                if node.facts is not None
            ],
        )

    async def remove_weights(self, request: pb.RemoveNodeWeightsRequest) -> pb.RemoveNodeWeightsResponse:
        """Propose the deletion of cached weights to a node."""
        self._node(request.node_id)
        answer = await self._term.requests.remove_weights(request.node_id, list(request.paths))
        return pb.RemoveNodeWeightsResponse(
            removed=answer.removed, kept=answer.kept, freed_bytes=answer.freed_bytes
        )

    async def forget_node(self, node_id: str) -> pb.ForgetNodeResponse:
        """Forget a node that will not come back."""
        self._node(node_id)
        if self._term.connections.is_open(node_id):
            raise RequestError(f"node {node_id} is connected: stop its akv-agent first")
        await self._term.ledger.delete_node(node_id)
        if not self._term.connections.is_open(node_id):  # it may have come back meanwhile
            self._term.inventory.nodes.pop(node_id, None)
            self._term.shards.forget(node_id)
        self._term.wake.set()
        return pb.ForgetNodeResponse()

    async def _write(self, spec: ModelSpec) -> pb.ApplyModelResponse:
        before = self._records.models.get(spec.name)
        revision = before.revision if before is not None else 0
        changed = before is None or replace(spec, revision=revision) != before
        written = replace(spec, revision=revision + int(changed))
        if changed:
            await self._term.ledger.put_model(written)
            self._term.wake.set()
        return pb.ApplyModelResponse(model=documents.model_message(written), changed=changed)

    def _node(self, node_id: str) -> Node:
        node = self._term.inventory.nodes.get(node_id)
        if node is None:
            raise NotFound(f"there is no node {node_id[:80]!r}: see clustercli nodes")
        return node

    def _model(self, name: str) -> ModelSpec:
        spec = self._records.models.get(name)
        if spec is None:
            raise NotFound(f"there is no model {name[:80]!r} in the catalogue: see clustercli models get")
        return spec

    def _known(self, model: str) -> None:
        """A model that is in the catalogue, or that is on its way out."""
        if not any(a.model == model for a in self._records.assignments.values()):
            self._model(model)


def _engines(request: pb.SetEnginesRequest) -> tuple[EngineWanted, ...]:
    names = [want.engine for want in request.engines]
    if len(names) > MAX_ENGINES or len(set(names)) != len(names) or not all(names):
        raise InvalidRequest(f"engines wanted are {', '.join(names)[:200]!r}: name each once")
    for want in request.engines:
        problem = engine_problem(want.engine, want.version, want.variant)
        if problem:
            raise InvalidRequest(f"engines not taken: {problem}")
    return tuple(EngineWanted(w.engine, w.version, w.variant) for w in request.engines)
