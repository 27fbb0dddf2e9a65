"""Nodes as placement sees them, made of the inventory, the streams and the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from akv.v1 import agent_pb2 as pb

from controlplane.fleet.connections import Connections
from controlplane.fleet.facts import NodeFacts
from controlplane.fleet.inventory import Inventory, Node
from controlplane.fleet.liveness import NodeState
from controlplane.fleet.placement import GpuView, NodeView
from controlplane.fleet.shards import Shards
from controlplane.model.catalogue import Assignment

# A GPU where nothing of ours runs and that has more than this in use is used by someone else.
FOREIGN_BYTES = 1 << 30
FOREIGN_SHARE = 0.05

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a view is made of, beside the node's facts."""

    state: NodeState
    draining: bool
    connected: bool
    ours: frozenset[str]
    held: frozenset[str]
    strays: frozenset[str]


class NodeViews:
    """Makes the views; one whose node has not changed is the same as before."""

    def __init__(self, inventory: Inventory, connections: Connections, shards: Shards) -> None:
        self._inventory = inventory
        self._connections = connections
        self._shards = shards
        self._made: dict[str, tuple[NodeFacts | None, _Inputs, NodeView]] = {}

    def all(self, assignments: Mapping[str, Assignment]) -> dict[str, NodeView]:
        """Every node of the inventory."""
        ours: dict[str, set[str]] = {}
        for assignment in assignments.values():
            for place in assignment.places:
                ours.setdefault(place.node_id, set()).update(place.gpu_uuids)
        held, strays = self._shards.strays_by_node()
        made = {}
        for name, node in self._inventory.nodes.items():
            inputs = _Inputs(
                node.state,
                node.draining,
                self._connections.is_open(name),
                frozenset(ours[name]) if name in ours else _NONE,
                held.get(name, _NONE),
                strays.get(name, _NONE),
            )
            made[name] = self._entry(node, inputs)
        self._made = made
        return {name: view for name, (_, _, view) in made.items()}

    def _entry(self, node: Node, inputs: _Inputs) -> tuple[NodeFacts | None, _Inputs, NodeView]:
        before = self._made.get(node.node_id)
        if before is not None and before[1] == inputs and _same(before[0], node.facts):
            return before
        return node.facts, inputs, _view(node, inputs)


def _same(before: NodeFacts | None, now: NodeFacts | None) -> bool:
    """Whether nothing that a view shows has changed: facts share with those before what did not change."""
    if before is None or now is None:
        return before is now
    return (
        before.register is now.register
        and before.gpus is now.gpus
        and before.problems is now.problems
        and before.engines is now.engines
        and before.fabrics is now.fabrics
        and before.memory_total == now.memory_total
    )


def _view(node: Node, inputs: _Inputs) -> NodeView:
    lost = node.state is NodeState.LOST
    facts = node.facts
    if facts is None or not inputs.connected:
        return NodeView(node.node_id, ready=False, lost=lost, draining=node.draining)
    sick, ours = facts.sick_gpus, inputs.ours | inputs.held
    return NodeView(
        node.node_id,
        ready=node.state is NodeState.READY,
        lost=lost,
        draining=node.draining,
        address=facts.register.address or facts.register.hostname,
        gpus=tuple(
            GpuView(gpu.uuid, gpu.model, gpu.memory_total_bytes, is_usable(gpu, sick, ours))
            for gpu in facts.gpus
        ),
        memory_bytes=facts.memory_total,
        engines=facts.engines,
        fabrics=frozenset(facts.fabric_names),
        held=inputs.held,
        strays=inputs.strays,
        can_drain="drain" in facts.register.features,
    )


def is_usable(gpu: pb.Gpu, sick: frozenset[int], ours: frozenset[str]) -> bool:
    """Whether a GPU is healthy, and used by nobody but us."""
    if gpu.index in sick:
        return False
    foreign = max(FOREIGN_BYTES, FOREIGN_SHARE * gpu.memory_total_bytes)
    return gpu.memory_used_bytes <= foreign or gpu.uuid in ours
