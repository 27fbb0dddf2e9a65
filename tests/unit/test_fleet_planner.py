"""The planner: placement rule by rule, then properties over worlds in which everything goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.fleet.life import Phase
from controlplane.fleet.placement import GpuView, NodeView, Room
from controlplane.fleet.planner import plan
from controlplane.model.catalogue import Assignment, CatalogueError, ModelSpec, Profile, check_model
from tests.support.fleet_world import World, WorldNode

GIB = 1 << 30


def profile(name: str = "p", **fields: object) -> Profile:
    return replace(Profile(name, "vllm", gpus=1), **fields)  # type: ignore[arg-type]


def model(replicas: int = 1, *profiles: Profile, name: str = "m") -> ModelSpec:
    return ModelSpec(name, replicas, profiles or (profile(),))


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


def world(*gpus: int) -> World:
    return World(WorldNode(f"n{number}", count) for number, count in enumerate(gpus))


def phases(where: World) -> list[Phase]:
    return [where.shards.statuses[p.shard_id].phase for a in where.assignments.values() for p in a.places]


def test_replicas_are_placed_started_and_then_left_alone() -> None:
    w = world(2, 2)
    w.models["m"] = model(3)
    w.settle()
    assert phases(w) == [Phase.RUNNING] * 3
    assert len(w.started) == 3
    for _ in range(5):
        w.now += 3600
        assert plan(w.picture()).empty


def test_what_has_no_room_says_why_and_is_placed_when_there_is() -> None:
    w = world(1)
    w.models["m"] = model(2)
    w.settle()
    assert list(w.unplaceable) == ["m/1"]
    w.nodes["new"] = WorldNode("new", 1)
    w.settle()
    assert not w.unplaceable
    assert {place.node_id for a in w.assignments.values() for place in a.places} == {"n0", "new"}


def test_a_slow_start_is_stopped_and_tried_again() -> None:
    w = world(1)
    w.models["m"] = model(1, profile(start_seconds=60))
    w.silent_starts.add("n0")
    for _ in range(30):
        w.step()
        w.now += 5.0
    assert len(w.started) >= 2
    assert w.shards.statuses["m-0-0"].failures >= 1
    w.silent_starts.clear()
    w.settle()
    assert phases(w) == [Phase.RUNNING]


def test_a_crash_is_restarted_where_it_was_after_a_while() -> None:
    w = world(1, 1)
    w.models["m"] = model()
    w.settle()
    w.crash("n0")
    assert plan(w.picture()).empty
    w.settle()
    assert w.started == [("n0", "m-0-0")] * 2


def test_a_suspect_node_keeps_its_shards_and_gets_no_new_ones() -> None:
    w = world(2)
    w.models["m"] = model()
    w.settle()
    w.silence("n0", lost=False)
    w.models["m"] = model(2)
    w.settle()
    assert list(w.unplaceable) == ["m/1"]
    assert "not ready" in plan(w.picture()).unplaced["m/1"]


def test_a_lost_nodes_replicas_go_elsewhere_and_the_old_ones_are_stopped_when_it_returns() -> None:
    w = world(1, 1)
    w.models["m"] = model()
    w.settle()
    w.silence("n0", lost=True)
    w.settle()
    assert w.started == [("n0", "m-0-0"), ("n1", "m-0-0")]
    w.restore("n0")
    w.settle()
    assert w.nodes["n0"].processes == {}
    assert len(w.started) == 2


def test_a_drained_node_is_emptied_and_takes_nothing() -> None:
    w = world(2, 2)
    w.models["m"] = model(2)
    w.settle()
    w.nodes["n0"].draining = True
    w.settle()
    assert {place.node_id for a in w.assignments.values() for place in a.places} == {"n1"}
    assert w.nodes["n0"].processes == {}


def test_a_changed_profile_replaces_one_replica_after_the_other() -> None:
    w = world(3)
    w.models["m"] = model(3)
    w.settle()
    w.models["m"] = model(3, profile(arguments=("--new",)))
    fewest = 3
    for _ in range(60):
        w.step()
        running = sum(phase is Phase.RUNNING for phase in phases(w))
        fewest = min(fewest, running)
        w.now += 5.0
        w._serve()
    w.settle()
    assert fewest == 2
    assert all(a.profile.arguments == ("--new",) for a in w.assignments.values())


def test_a_bad_new_profile_stops_the_roll_at_its_first_replica() -> None:
    w = world(3)
    w.models["m"] = model(3)
    w.settle()
    w.models["m"] = model(3, profile(arguments=("--bad",)))
    w.refuse_starts.add("n0")
    for _ in range(100):
        w.step()
        w.now += 5.0
        w._serve()
    assert sum(phase is Phase.RUNNING for phase in phases(w)) == 2


def test_shards_of_one_replica_live_and_die_together() -> None:
    w = world(1, 1)
    w.models["m"] = model(1, profile(nodes=2, port=9000))
    w.settle()
    assert len(w.started) == 2
    w.crash("n1")
    w.settle()
    assert phases(w) == [Phase.RUNNING] * 2
    assert len(w.started) == 4
    generations = {p.generation for a in w.assignments.values() for p in a.places}
    assert len(generations) == 1


def test_a_model_whose_record_can_not_be_read_keeps_what_it_has() -> None:
    w = world(2)
    w.models["m"] = model(2)
    w.settle()
    del w.models["m"]
    assert [a.replica_id for a in plan(w.picture()).leave] == ["m/0", "m/1"]
    unreadable = replace(w.picture(), unreadable=frozenset({"m"}))
    assert plan(unreadable).empty
    forgotten = plan(replace(unreadable, nodes={}))
    assert [a.replica_id for a in forgotten.remove] == ["m/0", "m/1"]


def test_a_new_leader_starts_nothing_that_runs() -> None:
    w = world(2, 2)
    w.models["m"] = model(4)
    w.settle()
    w.new_leader()
    w.settle()
    assert len(w.started) == 4


def test_a_new_leader_goes_on_with_a_start_that_never_reached_the_node() -> None:
    w = world(1)
    w.models["m"] = model()
    w.step()
    assert w.assignments["m/0"].places[0].generation == 0
    w.step()
    w.nodes["n0"].processes.clear()
    w.new_leader()
    w.settle()
    assert phases(w) == [Phase.RUNNING]


def test_a_replica_without_room_does_not_keep_the_others_on_an_old_profile() -> None:
    w = world(2, 2, 4)
    w.models["x"] = model(2, profile(gpus=1, start_seconds=60), name="x")
    w.settle()
    w.models["x"] = model(3, profile(gpus=3, start_seconds=60), name="x")
    w.settle()
    assert [a.profile.gpus for a in w.assignments.values()] == [3]
    assert len(w.unplaceable) == 2
    w.now += 1000
    assert w.step().empty


NODE = st.sampled_from(["n0", "n1", "n2"])
MODEL = st.sampled_from("xyz")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("model"), MODEL, st.integers(0, 4), st.integers(1, 3)),
        st.tuples(st.just("wide"), MODEL, st.integers(0, 2), st.integers(1, 2)),
        st.tuples(st.just("delete"), MODEL),
        st.tuples(
            st.sampled_from(["suspect", "lost", "back", "crash", "drain", "refuse", "slow", "sick"]), NODE
        ),
        st.tuples(st.sampled_from(["crash", "suspect", "back"]), NODE),
        st.tuples(st.just("leader")),
        st.tuples(st.just("time"), st.integers(1, 400)),
    ),
    min_size=10,
    max_size=40,
)


def toggle(names: set[str], name: str) -> None:
    names.symmetric_difference_update({name})


def drain(w: World, name: str) -> None:
    w.nodes[name].draining ^= True


NODE_EVENTS: dict[str, Callable[[World, str], None]] = {
    "suspect": lambda w, name: w.silence(name, lost=False),
    "lost": lambda w, name: w.silence(name, lost=True),
    "back": World.restore,
    "crash": World.crash,
    "drain": drain,
    "refuse": lambda w, name: toggle(w.refuse_starts, name),
    "slow": lambda w, name: toggle(w.silent_starts, name),
    "sick": lambda w, name: w.nodes[name].sick.symmetric_difference_update({0}),
}


def apply(w: World, step: tuple[Any, ...]) -> None:
    """One thing that happens."""
    match step:
        case "model", name, replicas, gpus:
            w.models[name] = model(replicas, profile(gpus=gpus, start_seconds=60), name=name)
        case "wide", name, replicas, gpus:
            wide = profile("wide", gpus=gpus, nodes=2, port=9000)
            w.models[name] = model(replicas, wide, profile(), name=name)
        case "delete", name:
            w.models.pop(name, None)
        case ("leader",):
            w.new_leader()
        case "time", seconds:
            w.now += seconds
        case kind, name:
            NODE_EVENTS[kind](w, name)


def test_a_crash_on_a_node_that_then_falls_silent_is_restarted_when_it_is_heard_again() -> None:
    w = world(1)
    w.models["m"] = model()
    w.settle()
    w.crash("n0")
    w.silence("n0", lost=False)
    w.now += 60
    w.step()
    assert len(w.started) == 1
    w.restore("n0")
    w.settle()
    assert len(w.started) == 2


def test_a_slow_start_on_a_node_that_falls_silent_is_stopped_when_it_is_heard_again() -> None:
    w = world(1)
    w.models["m"] = model(1, profile(start_seconds=60))
    w.silent_starts.add("n0")
    w.step()
    w.step()
    w.silence("n0", lost=False)
    w.now += 60
    for _ in range(3):
        assert not w.step().stop
        w.now += 60
    assert w.nodes["n0"].processes
    w.restore("n0")
    w.silent_starts.clear()
    w.settle()
    assert phases(w) == [Phase.RUNNING]
    assert len(w.started) == 2


@settings(max_examples=150)
@given(STEPS)
def test_whatever_happens_the_rules_hold_and_the_end_is_quiet(steps: list[tuple[Any, ...]]) -> None:
    """`World` asserts at each step: no two places or processes on one GPU, no start on a suspect node."""
    w = world(2, 2, 4)
    for step in steps:
        apply(w, step)
        w.step()
        w.step()
        w.now += 5.0
        w._serve()
    for name, node in w.nodes.items():
        node.draining, node.sick = False, set()
        w.restore(name)
    w.refuse_starts.clear()
    w.silent_starts.clear()
    w.settle(600)
    assert set(phases(w)) <= {Phase.RUNNING}
    wanted = {replica for spec in w.models.values() for replica in spec.replica_ids()}
    assert set(w.assignments) | w.unplaceable == wanted
    assert not set(w.assignments) & w.unplaceable
    assert {shard for node in w.nodes.values() for shard in node.processes} == set(w.shards.statuses)
    begun = len(w.started)
    for _ in range(3):
        w.now += 1000
        assert w.step().empty
    assert len(w.started) == begun
