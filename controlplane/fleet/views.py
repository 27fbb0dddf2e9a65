"""Nodes as placement sees them, made of the inventory, the streams and the shards."""

from __future__ import annotations

from collections.abc import Mapping

from akv.v1 import agent_pb2 as pb

from controlplane.fleet.connections import Connections
from controlplane.fleet.inventory import Inventory, Node
from controlplane.fleet.liveness import NodeState
from controlplane.fleet.placement import GpuView, NodeView
from controlplane.fleet.shards import Shards
from controlplane.model.catalogue import Assignment

# A GPU where nothing of ours runs and that has more than this in use is used by someone else.
FOREIGN_BYTES = 1 << 30
FOREIGN_SHARE = 0.05


def node_views(
    inventory: Inventory, connections: Connections, shards: Shards, assignments: Mapping[str, Assignment]
) -> dict[str, NodeView]:
    """Every node of the inventory."""
    ours = {uuid for a in assignments.values() for place in a.places for uuid in place.gpu_uuids}
    return {node.node_id: node_view(node, connections, shards, ours) for node in inventory.nodes.values()}


def node_view(node: Node, connections: Connections, shards: Shards, ours: set[str]) -> NodeView:
    """One node."""
    lost = node.state is NodeState.LOST
    facts = node.facts
    if facts is None or not connections.is_open(node.node_id):
        return NodeView(node.node_id, ready=False, lost=lost, draining=node.draining)
    held = shards.held(node.node_id)
    sick = facts.sick_gpus
    return NodeView(
        node.node_id,
        ready=node.state is NodeState.READY,
        lost=lost,
        draining=node.draining,
        address=facts.register.address or facts.register.hostname,
        gpus=tuple(
            GpuView(gpu.uuid, gpu.model, gpu.memory_total_bytes, _usable(gpu, sick, ours | held))
            for gpu in facts.gpus
        ),
        memory_bytes=facts.memory_total,
        engines=facts.engines,
        fabrics=frozenset(facts.fabric_names),
        held=held,
        strays=shards.stray_shards(node.node_id),
        can_drain="drain" in facts.register.features,
    )


def _usable(gpu: pb.Gpu, sick: frozenset[int], ours: set[str]) -> bool:
    if gpu.index in sick:
        return False
    foreign = max(FOREIGN_BYTES, FOREIGN_SHARE * gpu.memory_total_bytes)
    return gpu.uuid in ours or gpu.memory_used_bytes <= foreign
