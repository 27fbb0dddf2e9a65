"""Pairing adapters, grading, and choosing from where a fabric is mapped."""

from __future__ import annotations

import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2
from hypothesis import given
from hypothesis import strategies as st

from controlplane.fleet.facts import from_register
from controlplane.fleet.rails import Side, grade, pair_rails, side_of
from controlplane.fleet.scans import viewpoints


def port(hca: str, number: int = 1, **fields: object) -> pb.IbPort:
    base = {"state": "ACTIVE", "link_layer": "InfiniBand", "rate_gbps": 400, "gid_prefix": "fe80"}
    return pb.IbPort(hca=hca, port=number, **{**base, **fields})  # type: ignore[arg-type]


def node(name: str, ports: list[pb.IbPort], **fabrics: list[str]) -> Side:
    named = fabrics or {"ib-fe80": sorted({p.hca for p in ports if p.state == "ACTIVE"})}
    attached = [pb.FabricAttachment(fabric=fabric, hcas=hcas) for fabric, hcas in named.items()]
    register = pb.Register(
        node_id=name,
        ib_ports=pb.IbPortsReport(ports=ports),
        fabrics=pb.FabricsReport(fabrics=attached),
    )
    return side_of(from_register(register, 0.0))


def pairs(rails: list[fleet_pb2.Rail]) -> list[tuple[str, str]]:
    return [(rail.client_hca, rail.server_hca) for rail in rails]


def test_ports_of_one_name_are_a_rail_also_beside_one_that_is_down() -> None:
    client = node("a", [port("mlx5_10"), port("mlx5_2"), port("mlx5_3", state="DOWN")])
    server = node("b", [port("mlx5_2", rate_gbps=200), port("mlx5_3"), port("mlx5_10")])
    rails = pair_rails(client, server)
    assert pairs(rails) == [("mlx5_2", "mlx5_2"), ("mlx5_10", "mlx5_10"), ("", "mlx5_3")]
    assert [rail.rate_gbps for rail in rails] == [200, 400, 0]
    assert rails[2].problem == "mlx5_3/1 of b has no counterpart on a, where mlx5_3/1 is DOWN"


def test_ports_of_other_names_are_paired_in_their_order() -> None:
    rails = pair_rails(node("a", [port("ib2"), port("ib10")]), node("b", [port("hca0"), port("hca1")]))
    assert pairs(rails) == [("ib2", "hca0"), ("ib10", "hca1")]
    assert all(not rail.problem for rail in rails)


def test_only_shared_fabrics_count_and_one_can_be_chosen() -> None:
    client = node("a", [port("m0"), port("m1")], compute=["m0"], storage=["m1"])
    server = node("b", [port("m0"), port("m1")], compute=["m0"], other=["m1"])
    assert pairs(pair_rails(client, server)) == [("m0", "m0")]
    assert pair_rails(client, server, "storage") == []
    assert pairs(pair_rails(client, client, "storage")) == [("m1", "m1")]


def test_two_kinds_of_link_are_no_rail() -> None:
    client = node("a", [port("m0")], site=["m0"])
    server = node("b", [port("m0", link_layer="Ethernet")], site=["m0"])
    assert pair_rails(client, server)[0].problem == "one side is InfiniBand, the other Ethernet"


def test_an_adapter_with_two_kinds_of_ports_is_on_two_fabrics() -> None:
    ports = [port("m0", 1), port("m0", 2, link_layer="Ethernet")]
    side = node("a", ports, **{"ib-fe80": ["m0"], "roce": ["m0"]})
    assert side.fabrics == {("m0", 1): "ib-fe80", ("m0", 2): "roce"}


names = st.lists(st.sampled_from([f"mlx5_{n}" for n in range(12)]), unique=True, max_size=10)


@given(names, names)
def test_every_port_is_in_exactly_one_rail(ours: list[str], theirs: list[str]) -> None:
    rails = pair_rails(node("a", [port(n) for n in ours]), node("b", [port(n) for n in theirs]))
    if ours and theirs:
        assert sorted(rail.client_hca for rail in rails if rail.client_hca) == sorted(ours)
        assert sorted(rail.server_hca for rail in rails if rail.server_hca) == sorted(theirs)
    for rail in rails:
        assert bool(rail.problem) == (not rail.client_hca or not rail.server_hca)
        if rail.client_hca in theirs and rail.client_hca:
            assert rail.server_hca == rail.client_hca


@pytest.mark.parametrize(
    ("average", "rate", "word"),
    [
        (392.0, 400, "GOOD"),
        (360.0, 400, "GOOD"),
        (359.0, 400, "SLOW"),
        (280.0, 400, "SLOW"),
        (279.0, 400, "BAD"),
        (0.0, 400, "BAD"),
        (9.0, 0, "UNSPECIFIED"),
    ],
)
def test_grades(average: float, rate: int, word: str) -> None:
    assert fleet_pb2.RailGrade.Name(grade(average, rate)[1]) == f"RAIL_GRADE_{word}"


def test_each_fabric_is_mapped_from_one_working_port_of_the_first_node() -> None:
    nodes = [
        (
            "a",
            [
                port("m0", state="DOWN", sm_guid="x"),
                port("m1", link_layer="Ethernet"),
                port("m2", sm_guid="x"),
            ],
        ),
        ("b", [port("m0", sm_guid="x"), port("m1", sm_guid="y"), port("m3")]),
    ]
    found = [(view.fabric, view.node_id, view.port.hca) for view in viewpoints(nodes)]
    assert found == [("ib-fe80", "b", "m3"), ("x", "a", "m2"), ("y", "b", "m1")]
