"""Replicas that keep failing where they are: moved to another node, so often and no oftener, then at rest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.fleet.life import Phase
from controlplane.fleet.planner import plan
from controlplane.fleet.setbacks import (
    AVOID_SECONDS,
    MAX_MOVES,
    MOVE_AFTER,
    recalled,
    still_valid,
    to_record,
)
from controlplane.model.catalogue import ModelSpec, Profile
from tests.support.fleet_world import World, WorldNode


def world(*gpus: int) -> World:
    return World(WorldNode(f"n{number}", count) for number, count in enumerate(gpus))


def model(replicas: int = 1, **fields: object) -> ModelSpec:
    return ModelSpec("m", replicas, (replace(Profile("p", "vllm", gpus=1), **fields),))  # type: ignore[arg-type]


def live(w: World, seconds: float, step: float = 5.0) -> dict[str, list[tuple[float, str]]]:
    """Let time pass; of each replica when it came to which nodes, where it changed."""
    ways: dict[str, list[tuple[float, str]]] = defaultdict(list)
    end = w.now + seconds
    while w.now < end:
        w.step()
        for replica, assignment in w.assignments.items():
            node = ",".join(place.node_id for place in assignment.places)
            if not ways[replica] or ways[replica][-1][1] != node:
                ways[replica].append((w.now, node))
        w.now += step
        w._serve()
    return ways


def phases(w: World) -> set[Phase]:
    return {status.phase for status in w.shards.statuses.values()}


def test_what_keeps_failing_on_a_node_runs_on_another() -> None:
    w = world(1, 4)
    w.refuse_starts.add("n0")
    w.models["m"] = model()
    ways = live(w, 120)
    assert [node for _, node in ways["m/0"]] == ["n0", "n1"]
    assert w.started == [("n0", "m-0-0")] * MOVE_AFTER + [("n1", "m-0-0")]
    assert phases(w) == {Phase.RUNNING}


def test_a_failure_or_two_move_nothing() -> None:
    w = world(1, 4)
    w.models["m"] = model()
    w.settle()
    for _ in range(MOVE_AFTER - 1):
        w.crash("n0")
        live(w, 300)
    assert {node for node, _ in w.started} == {"n0"}
    assert phases(w) == {Phase.RUNNING}


def test_without_room_elsewhere_it_stays_and_is_tried_ever_more_rarely() -> None:
    w = world(1)
    w.refuse_starts.add("n0")
    w.models["m"] = model()
    live(w, 3600)
    assert {a.places[0].node_id for a in w.assignments.values()} == {"n0"}
    assert len(w.started) < 24
    w.nodes["n1"] = WorldNode("n1", 1)
    live(w, 400)
    assert phases(w) == {Phase.RUNNING}


def test_what_fails_everywhere_comes_to_rest() -> None:
    w = world(*[1] * 12)
    w.refuse_starts.update(w.nodes)
    w.models["m"] = model()
    ways = live(w, AVOID_SECONDS - 60)
    assert len(ways["m/0"]) == MAX_MOVES + 1
    assert len({node for _, node in ways["m/0"]}) == MAX_MOVES + 1
    w.refuse_starts.clear()
    live(w, 400)
    assert phases(w) == {Phase.RUNNING}


def test_changes_of_the_leader_forget_nothing() -> None:
    """Neither the failures in a row, which make the pauses longer, nor the nodes that were left."""
    w = world(*[1] * 12)
    w.refuse_starts.update(w.nodes)
    w.models["m"] = model()
    homes: list[str] = []
    while w.now < 1000.0 + AVOID_SECONDS - 60:
        homes += [node for _, node in live(w, 100)["m/0"]]
        w.new_leader()
    assert len([node for node, before in zip(homes, ["", *homes], strict=False) if node != before]) == (
        MAX_MOVES + 1
    )
    assert len(set(homes)) == MAX_MOVES + 1
    assert len(w.started) < 48


def test_what_was_recorded_holds_for_the_next_leader_whatever_its_clocks_say() -> None:
    before = {"a/0": {"n0": 500.0}, "b/0": {"n1": 900.0}}
    after = {"a/0": {"n0": 500.0, "n2": 4000.0}, "c/0": {"n3": 700.0}}
    record = to_record(before, after, 1_000_000.0)
    assert record == {
        "a/0": {"n0": 1_000_500.0, "n2": 1_004_000.0},
        "b/0": {},
        "c/0": {"n3": 1_000_700.0},
    }
    assert to_record(after, after, 1_000_000.0) == {}
    # Another machine: its monotonic clock began elsewhere, at the same time of day.
    assert recalled({"a/0": record["a/0"]}, 50.0, 1_000_350.0) == {"a/0": {"n0": 150.0, "n2": 3650.0}}
    # Its time of day is years behind: a node is avoided for an hour at most.
    assert recalled({"a/0": record["a/0"]}, 50.0, 0.0) == {
        "a/0": {"n0": 50.0 + AVOID_SECONDS, "n2": 50.0 + AVOID_SECONDS}
    }


def test_of_several_nodes_only_the_failing_one_is_exchanged() -> None:
    w = world(1, 1, 1)
    w.refuse_starts.add("n1")
    w.models["m"] = model(nodes=2, port=9000)
    live(w, 200)
    [assignment] = w.assignments.values()
    assert [place.node_id for place in assignment.places] == ["n0", "n2"]
    assert phases(w) == {Phase.RUNNING}


def test_a_place_that_was_taken_meanwhile_leaves_the_old_node_rather_than_none() -> None:
    w = world(1, 1)
    w.refuse_starts.add("n0")
    w.models["m"] = model()
    while not w.setbacks:
        w.step()
        w.now += 5.0
    w.nodes["n1"].sick.add(0)
    live(w, 30)
    assert [a.places[0].node_id for a in w.assignments.values()] == ["n0"]


def test_another_profile_is_tried_on_every_node() -> None:
    w = world(1, 1)
    w.refuse_starts.update(w.nodes)
    w.models["m"] = model()
    live(w, 120)
    assert "n0" in w.setbacks["m/0"]
    w.models["m"] = model(arguments=("--better",))
    w.step()
    w.step()
    assert w.setbacks == {}


def test_setbacks_of_the_past_and_of_what_is_not_wanted_are_forgotten() -> None:
    setbacks = {"a/0": {"n0": 10.0, "n1": 20.0}, "b/0": {"n0": 99.0}, "c/0": {"n0": 5.0}}
    assert still_valid(setbacks, ["a/0", "c/0"], 10.0) == {"a/0": {"n1": 20.0}}


def test_a_long_run_wipes_them_out() -> None:
    w = world(1, 1)
    w.refuse_starts.add("n0")
    w.models["m"] = model()
    live(w, 120)
    assert "m/0" in w.setbacks
    live(w, 620)
    assert w.setbacks == {}


@settings(max_examples=25)
@given(
    gpus=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    bad=st.sets(st.integers(0, 4)),
    slow=st.sets(st.integers(0, 4)),
    replicas=st.integers(1, 4),
)
def test_moves_are_bounded_and_good_nodes_are_found(
    gpus: list[int], bad: set[int], slow: set[int], replicas: int
) -> None:
    """In any window no replica moves oftener than it may; and where good nodes have room for all, all run."""
    w = world(*gpus)
    w.refuse_starts.update(f"n{number}" for number in bad)
    w.silent_starts.update(f"n{number}" for number in slow)
    w.models["m"] = model(replicas, start_seconds=60)
    ways = live(w, 2 * AVOID_SECONDS, step=20.0)
    for way in ways.values():
        moves = [when for when, _ in way][1:]
        for first in moves:
            assert sum(first <= when < first + AVOID_SECONDS for when in moves) <= MAX_MOVES
    good = sum(count for number, count in enumerate(gpus) if number not in bad | slow)
    if good >= replicas:
        assert phases(w) == {Phase.RUNNING}
        begun = len(w.started)
        live(w, 1000)
        assert len(w.started) == begun
        assert plan(w.picture()).empty
