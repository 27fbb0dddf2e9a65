"""Which adapters of two nodes face each other, and how good a measured bandwidth is. Pure.

A rail is one port on each side. Ports with the same name are a rail, since nodes of a kind are cabled alike;
what is left over is paired in the order of the names, first with first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from akv.v1 import agent_pb2
from akv.v1 import fleet_pb2 as pb

from controlplane.fleet.facts import NodeFacts
from controlplane.fleet.rates import port_id

ACTIVE, ETHERNET = "ACTIVE", "Ethernet"
# Of the link's rate: headers and a link's coding take a few per cent of it.
GOOD_SHARE, SLOW_SHARE = 0.90, 0.70
_DIGITS = re.compile(r"(\d+)")

Port = agent_pb2.IbPort


@dataclass(frozen=True, slots=True)
class Side:
    """One node of a pair: its name and its ports, and of the active ones the fabric of each."""

    name: str
    ports: Sequence[Port]
    fabrics: Mapping[tuple[str, int], str]


def side_of(facts: NodeFacts) -> Side:
    """The node as a side of a test."""
    ports = sorted(facts.ports, key=_order)
    fabrics = {port_id(port): _fabric_of(port, facts.fabrics) for port in ports if port.state == ACTIVE}
    return Side(facts.node_id, ports, fabrics)


def pair_rails(client: Side, server: Side, fabric: str = "") -> list[pb.Rail]:
    """Every rail between the two on the fabrics that they share, or on one; what has no other side, too."""
    shared = set(client.fabrics.values()) & set(server.fabrics.values()) - {""}
    wanted = sorted(shared & {fabric} if fabric else shared)
    return [rail for name in wanted for rail in _on_fabric(client, server, name)]


def grade(average_gbps: float, rate_gbps: int) -> tuple[float, pb.RailGrade.ValueType]:
    """The share of the link's rate, and what to make of it."""
    if rate_gbps <= 0:
        return 0.0, pb.RAIL_GRADE_UNSPECIFIED
    share = average_gbps / rate_gbps
    if share >= GOOD_SHARE:
        return share, pb.RAIL_GRADE_GOOD
    return share, pb.RAIL_GRADE_SLOW if share >= SLOW_SHARE else pb.RAIL_GRADE_BAD


def link_rate(client: Port | None, server: Port | None) -> int:
    """Gigabits a second of the slower link; 0 when one of them is not known."""
    return min(client.rate_gbps, server.rate_gbps) if client is not None and server is not None else 0


def find_port(ports: Iterable[Port], hca: str, number: int) -> Port | None:
    """The port of that name."""
    return next((port for port in ports if port_id(port) == (hca, number)), None)


def _on_fabric(client: Side, server: Side, fabric: str) -> list[pb.Rail]:
    ours, theirs = _ports_on(client, fabric), _ports_on(server, fabric)
    same = [key for key in ours if key in theirs]
    rest = [[ports[key] for key in ports if key not in same] for ports in (ours, theirs)]
    pairs = [(ours[key], theirs[key]) for key in same] + list(zip(*rest, strict=False))
    rails = [_rail(fabric, one, other) for one, other in pairs]
    for side, other, left in ((client, server, rest[0]), (server, client, rest[1])):
        for port in left[min(map(len, rest)) :]:
            rails.append(_alone(fabric, port, _without(port, side, other), on_client=side is client))
    return rails


def _rail(fabric: str, client: Port, server: Port) -> pb.Rail:
    differ = client.link_layer != server.link_layer
    return pb.Rail(
        fabric=fabric,
        client_hca=client.hca,
        client_port=client.port,
        server_hca=server.hca,
        server_port=server.port,
        link_layer=client.link_layer,
        rate_gbps=link_rate(client, server),
        problem=f"one side is {client.link_layer}, the other {server.link_layer}" if differ else "",
    )


def _without(port: Port, side: Side, other: Side) -> str:
    same = find_port(other.ports, *port_id(port))
    state = f", where {_name(same)} is {same.state or 'in no state'}" if same is not None else ""
    if same is not None and same.state == ACTIVE:
        state = f", where {_name(same)} is on {other.fabrics[port_id(same)] or 'no fabric'}"
    return f"{_name(port)} of {side.name} has no counterpart on {other.name}{state}"


def _alone(fabric: str, port: Port, problem: str, on_client: bool) -> pb.Rail:
    rail = pb.Rail(fabric=fabric, link_layer=port.link_layer, problem=problem)
    if on_client:
        rail.client_hca, rail.client_port = port.hca, port.port
    else:
        rail.server_hca, rail.server_port = port.hca, port.port
    return rail


def _ports_on(side: Side, fabric: str) -> dict[tuple[str, int], Port]:
    return {port_id(port): port for port in side.ports if side.fabrics.get(port_id(port)) == fabric}


def _fabric_of(port: Port, attached: Sequence[agent_pb2.FabricAttachment]) -> str:
    """The fabric that an active port is on; an adapter with ports of two kinds may be on two."""
    names = sorted(fabric.fabric for fabric in attached if port.hca in fabric.hcas)
    usual = "roce" if port.link_layer == ETHERNET else f"ib-{port.gid_prefix}"
    if usual in names:
        return usual
    return names[0] if names else ""


def _order(port: Port) -> tuple[list[tuple[int, str]], int]:
    """mlx5_2 before mlx5_10."""
    parts = [part for part in _DIGITS.split(port.hca) if part]
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], port.port


def _name(port: Port) -> str:
    return f"{port.hca}/{port.port}"
