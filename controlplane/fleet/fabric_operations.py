"""What operators can ask about fabrics: maps, rails between two nodes, and bandwidth. Raises RequestError."""

from __future__ import annotations

from akv.v1 import agent_pb2
from akv.v1 import fleet_pb2 as pb

from controlplane.base.request_errors import InvalidRequest, NotFound, RequestError
from controlplane.fleet.facts import NodeFacts
from controlplane.fleet.inventory import Inventory
from controlplane.fleet.rails import ACTIVE, ETHERNET, find_port, grade, link_rate, pair_rails, side_of
from controlplane.fleet.requests import Requests
from controlplane.fleet.scans import FabricScans

MAX_MESSAGE_BYTES = 16 << 20


class FabricOperations:
    """The calls of one term."""

    def __init__(self, inventory: Inventory, requests: Requests, scans: FabricScans) -> None:
        self._inventory = inventory
        self._requests = requests
        self._scans = scans

    async def scan(self, request: pb.ScanFabricRequest) -> pb.ScanFabricResponse:
        """Have a node map the fabric that one of its ports is on."""
        facts = self._facts(request.node_id)
        hca, port = request.hca, request.port or 1
        if not hca:
            chosen = _first_port(facts)
            hca, port = chosen.hca, chosen.port
        answer = await self._requests.scan_fabric(request.node_id, hca, port)
        return pb.ScanFabricResponse(
            output=answer.output, took_seconds=answer.took_seconds, hca=hca, port=port
        )

    def maps(self, fabric: str) -> pb.ListFabricMapsResponse:
        """The last map of each InfiniBand fabric, or of one with what its tool wrote."""
        answer = pb.ListFabricMapsResponse(maps=[found for _, found in sorted(self._scans.maps.items())])
        if not fabric:
            for found in answer.maps:
                found.ClearField("output")  # together they may be too much for one message
            return answer
        if fabric not in self._scans.maps:
            raise NotFound(f"there is no map of a fabric {fabric[:80]!r}: see clustercli fabric-scan")
        return pb.ListFabricMapsResponse(maps=[self._scans.maps[fabric]])

    def pair(self, request: pb.PairRailsRequest) -> pb.PairRailsResponse:
        """The rails between two nodes."""
        client, server = self._pair(request.client_node, request.server_node)
        rails = pair_rails(side_of(client), side_of(server), request.fabric)
        if not rails:
            raise RequestError(_nothing_shared(client, server, request.fabric))
        return pb.PairRailsResponse(rails=rails)

    async def test(self, request: pb.TestRailRequest) -> pb.TestRailResponse:
        """Measure one rail."""
        client, server = self._pair(request.client_node, request.server_node)
        if request.message_bytes > MAX_MESSAGE_BYTES:
            raise InvalidRequest(f"messages of {request.message_bytes} bytes: at most {MAX_MESSAGE_BYTES}")
        rail = request.rail
        if bool(rail.client_hca) != bool(rail.server_hca):
            raise InvalidRequest("an adapter is named on one node only: name both, or none to test over TCP")
        serving = agent_pb2.FabricTestRequest(
            side=agent_pb2.FABRIC_TEST_SIDE_SERVER,
            hca=rail.server_hca,
            port=rail.server_port,
            seconds=request.seconds,
            message_bytes=request.message_bytes,
        )
        calling = agent_pb2.FabricTestRequest(
            side=agent_pb2.FABRIC_TEST_SIDE_CLIENT,
            hca=rail.client_hca,
            port=rail.client_port,
            peer=server.register.address or server.register.hostname,
            seconds=request.seconds,
            message_bytes=request.message_bytes,
        )
        answer = await self._requests.test_fabric((server.node_id, serving), (client.node_id, calling))
        rate = link_rate(
            find_port(client.ports, rail.client_hca, rail.client_port),
            find_port(server.ports, rail.server_hca, rail.server_port),
        )
        return _graded(answer, rate)

    def _pair(self, client: str, server: str) -> tuple[NodeFacts, NodeFacts]:
        """Both nodes, once it is sure that both can do their part."""
        if client == server:
            raise InvalidRequest(f"{client[:80]!r} is both nodes: name two")
        sides = self._facts(client), self._facts(server)
        for side in sides:
            self._requests.able_to_test(side.node_id)
        return sides

    def _facts(self, node_id: str) -> NodeFacts:
        node = self._inventory.nodes.get(node_id)
        if node is None:
            raise NotFound(f"there is no node {node_id[:80]!r}: see clustercli nodes")
        if node.facts is None:
            raise RequestError(f"node {node_id} has not registered yet: see clustercli nodes")
        return node.facts


def _graded(answer: agent_pb2.FabricTestAnswer, rate: int) -> pb.TestRailResponse:
    share, mark = grade(answer.average_gbps, rate)
    return pb.TestRailResponse(
        average_gbps=answer.average_gbps,
        peak_gbps=answer.peak_gbps,
        rate_gbps=rate,
        share=share,
        grade=mark,
        gid_index=answer.gid_index,
        output=answer.output,
    )


def _first_port(facts: NodeFacts) -> agent_pb2.IbPort:
    """The first active port, InfiniBand before RoCE. Raises RequestError."""
    active = [port for port in side_of(facts).ports if port.state == ACTIVE]
    active.sort(key=lambda port: port.link_layer == ETHERNET)
    if not active:
        raise RequestError(f"node {facts.node_id} has no active InfiniBand or RoCE port")
    return active[0]


def _nothing_shared(client: NodeFacts, server: NodeFacts, wanted: str) -> str:
    on = [f"{f.node_id} is on {', '.join(f.fabric_names) or 'none'}" for f in (client, server)]
    what = f"are not both on fabric {wanted[:80]!r}" if wanted else "share no fabric with active adapters"
    return (
        f"{client.node_id} and {server.node_id} {what} ({'; '.join(on)}): "
        "test the network of their addresses instead (--tcp)"
    )
