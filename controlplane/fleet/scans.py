"""Maps of the InfiniBand fabrics, made every few minutes: one node on each is asked, by its name the first.

A fabric looks the same from all its ports, so one is enough, and its other nodes are left to their work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from akv.v1 import agent_pb2
from akv.v1 import fleet_pb2 as pb

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.fleet.connections import Connections
from controlplane.fleet.inventory import Inventory
from controlplane.fleet.liveness import NodeState
from controlplane.fleet.rails import ACTIVE, ETHERNET
from controlplane.fleet.requests import Requests

# Soon after a term began, once its agents have told their ports.
FIRST_SECONDS = 30.0
EVERY_SECONDS = 300.0
MAX_FABRICS = 64

log = get_logger("fleet-scans")


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """A port from which a fabric is to be mapped."""

    fabric: str
    node_id: str
    port: agent_pb2.IbPort


class FabricScans:
    """The last map of each fabric that there is now. `wall` is Unix seconds, for display."""

    def __init__(
        self,
        inventory: Inventory,
        connections: Connections,
        requests: Requests,
        wall: Clock,
        *,
        first: float = FIRST_SECONDS,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._inventory = inventory
        self._connections = connections
        self._requests = requests
        self._wall = wall
        self._first = first
        self._every = every
        self.maps: dict[str, pb.FabricMap] = {}

    async def run(self) -> None:
        """Scan until cancelled."""
        await asyncio.sleep(self._first)
        while True:
            await self.scan_all()
            await asyncio.sleep(self._every)

    async def scan_all(self) -> None:
        """Map every fabric once, one after the other; those that are no more are forgotten."""
        chosen = viewpoints(self._nodes_with_ports())
        self.maps = {view.fabric: self.maps[view.fabric] for view in chosen if view.fabric in self.maps}
        for view in chosen:
            self.maps[view.fabric] = await self._scan(view)

    async def _scan(self, view: Viewpoint) -> pb.FabricMap:
        hca, number = view.port.hca, view.port.port
        found = pb.FabricMap(fabric=view.fabric, node_id=view.node_id, hca=hca, port=number, at=self._wall())
        try:
            answer = await self._requests.scan_fabric(view.node_id, hca, number)
        except RequestError as error:
            found.error = str(error)
            log.warning("fabric not mapped", fabric=view.fabric, node=view.node_id, reason=found.error)
        else:
            found.output, found.took_seconds = answer.output, answer.took_seconds
            _count(found)
        return found

    def _nodes_with_ports(self) -> Iterator[tuple[str, Iterable[agent_pb2.IbPort]]]:
        """Nodes that can be asked, by name."""
        for name, node in sorted(self._inventory.nodes.items()):
            if node.state is not NodeState.READY or node.facts is None or not self._connections.is_open(name):
                continue
            if "fabric-scan" in self._connections.get(name).features:
                yield name, node.facts.ports


def viewpoints(nodes: Iterable[tuple[str, Iterable[agent_pb2.IbPort]]]) -> list[Viewpoint]:
    """One active InfiniBand port on each fabric, of the first node that has one. Pure."""
    chosen: dict[str, Viewpoint] = {}
    for name, ports in nodes:
        for port in ports:
            fabric = fabric_key(port)
            if port.link_layer != ETHERNET and port.state == ACTIVE and fabric not in chosen:
                chosen[fabric] = Viewpoint(fabric, name, port)
    return [chosen[fabric] for fabric in sorted(chosen)][:MAX_FABRICS]


def _count(found: pb.FabricMap) -> None:
    """How many nodes of each kind the map has: ibnetdiscover begins each with the name of its kind."""
    kinds = Counter(line.split(None, 1)[0] for line in found.output.splitlines() if line.strip())
    found.switches, found.adapters, found.routers = kinds["Switch"], kinds["Ca"], kinds["Rt"]


def fabric_key(port: agent_pb2.IbPort) -> str:
    """What tells physical fabrics apart: the master subnet manager, since all have the same prefix often."""
    return port.sm_guid or f"ib-{port.gid_prefix}"
