"""Where a replica can go, rule by rule, and models that make no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.fleet.placement import GpuView, NodeView, Room
from controlplane.model.catalogue import Assignment, CatalogueError, ModelSpec, Profile, check_model
from tests.support.fleet_world import model, profile

GIB = 1 << 30


def view(name: str = "n", gpus: int = 2, **fields: object) -> NodeView:
    cards = tuple(GpuView(f"{name}-{n}", "NVIDIA H100", 80 * GIB) for n in range(gpus))
    base = NodeView(name, gpus=cards, memory_bytes=64 * GIB, engines={"vllm": "0.11"})
    return replace(base, **fields)  # type: ignore[arg-type]


def placed(spec: ModelSpec, *nodes: NodeView, before: tuple[Assignment, ...] = ()) -> Assignment | str:
    return Room(nodes, before).place(spec, f"{spec.name}/0")


def nodes_of(found: Assignment | str) -> list[str]:
    assert isinstance(found, Assignment), found
    return [place.node_id for place in found.places]


@pytest.mark.parametrize(
    ("wanted", "node", "why"),
    [
        (profile(gpus=3), view(), "1 with too few free GPUs that fit"),
        (profile(gpu_model="B200"), view(), "1 with too few free GPUs that fit"),
        (profile(gpu_memory_bytes=100 * GIB), view(), "1 with too few free GPUs that fit"),
        (profile(memory_bytes=65 * GIB), view(), "1 with too little free memory"),
        (profile(engine="sglang"), view(), "1 without engine sglang"),
        (profile(engine_version="0.12"), view(), "1 without engine vllm 0.12"),
        (profile(fabric="ib0"), view(), "1 not on fabric ib0"),
        (profile(), view(ready=False), "1 not ready"),
        (profile(), view(draining=True), "1 draining"),
        (profile(gpus=2), view(held=frozenset({"n-0"})), "1 with too few free GPUs that fit"),
        (profile(nodes=2, port=1), view(fabrics=frozenset({"ib0"})), "1 that fit where 2 on one fabric"),
    ],
)
def test_why_there_is_no_room(wanted: Profile, node: NodeView, why: str) -> None:
    found = placed(model(1, wanted), node)
    assert isinstance(found, str)
    assert why in found


def test_a_sick_gpu_is_left_out() -> None:
    gpus = (GpuView("a", usable=False), GpuView("b"))
    found = placed(model(), replace(view(), gpus=gpus))
    assert isinstance(found, Assignment)
    assert found.places[0].gpu_uuids == ("b",)


def test_a_process_needs_no_engine() -> None:
    assert nodes_of(placed(model(1, profile(engine="process")), view(engines={}))) == ["n"]


def test_the_first_profile_with_room_is_taken() -> None:
    found = placed(model(1, profile("big", gpus=4), profile("small")), view())
    assert isinstance(found, Assignment)
    assert found.profile.name == "small"


def test_a_model_is_spread_over_nodes_and_nodes_in_use_are_filled_first() -> None:
    first = Room([view("a"), view("b")], ()).place(model(name="x"), "x/0")
    assert isinstance(first, Assignment)
    assert nodes_of(first) == ["a"]
    assert nodes_of(placed(model(name="x"), view("a"), view("b"), before=(first,))) == ["b"]
    assert nodes_of(placed(model(name="y"), view("a"), view("b"), before=(first,))) == ["a"]


def test_a_fixed_port_is_given_once_a_node() -> None:
    spec = model(2, profile(port=8000))
    first = Room([view("a")], ()).place(spec, "m/0")
    assert isinstance(first, Assignment)
    assert "port 8000 taken" in str(Room([view("a")], [first]).place(spec, "m/1"))


def test_a_replica_of_several_nodes_stays_on_one_fabric() -> None:
    nodes = [
        view("a", fabrics=frozenset({"x"})),
        view("b", fabrics=frozenset({"y"})),
        view("c", fabrics=frozenset({"y"})),
    ]
    assert nodes_of(placed(model(1, profile(nodes=2, port=1)), *nodes)) == ["b", "c"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": "A"}, "name is 'A'"),
        ({"replicas": 5000}, "replicas"),
        ({"profiles": ()}, "number of profiles"),
        ({"profiles": (profile(), profile())}, "one name twice"),
        ({"profiles": (profile(gpus=1000),)}, "gpus"),
        ({"profiles": (profile(nodes=2),)}, "port is 0"),
        ({"profiles": (profile(port=70000),)}, "port"),
        ({"profiles": (profile(health_path="health"),)}, "does not begin with '/'"),
        ({"profiles": (profile(environment={"A=B": "c"}),)}, "not the name of a variable"),
        ({"profiles": (profile(arguments=("a\0b",)),)}, "NUL"),
        ({"profiles": (profile(start_seconds=float("nan")),)}, "start_seconds"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused_with_its_field(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(CatalogueError, match=why):
        check_model(replace(model(), **wrong))  # type: ignore[arg-type]
