"""The planner: what it does about each thing that happens, then properties over worlds full of trouble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.fleet.life import Phase
from controlplane.fleet.planner import plan
from tests.support.fleet_world import World, WorldNode, model, profile


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
