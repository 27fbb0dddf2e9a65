"""Liveness in two stages, the gate of incarnations, and what a new leader waits for."""

from __future__ import annotations

import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.fleet.gate import Gate, Verdict
from controlplane.fleet.inventory import Inventory
from controlplane.fleet.liveness import Limits, NodeState, judge
from controlplane.model.catalogue import NodeRecord
from tests.support.manual_clock import ManualClock

LIMITS = Limits(heartbeat=5, suspect=15, lost=120, grace=60)


def inventory(clock: ManualClock) -> Inventory:
    return Inventory(LIMITS, clock=clock, wall=lambda: 1.7e9)


def register(node: str = "gpu-1", incarnation: int = 7) -> pb.Register:
    return pb.Register(node_id=node, incarnation=incarnation)


@pytest.mark.parametrize(
    ("heard", "now", "state"),
    [
        (100.0, 114.9, NodeState.READY),
        (100.0, 115.0, NodeState.SUSPECT),
        (100.0, 219.9, NodeState.SUSPECT),
        (100.0, 220.0, NodeState.LOST),
        (None, 119.9, NodeState.EXPECTED),
        (None, 120.0, NodeState.LOST),
    ],
)
def test_silence_expires_in_two_stages(heard: float | None, now: float, state: NodeState) -> None:
    assert judge(heard, 0.0, now, LIMITS) is state


def test_a_silent_node_is_suspect_then_lost_and_ready_again_when_heard() -> None:
    clock = ManualClock()
    nodes = inventory(clock)
    nodes.register(register(), 1)
    node = nodes.nodes["gpu-1"]
    seen = []
    for silence in (0, 14, 16, 119, 121):
        clock.now = 1000.0 + silence
        nodes.expire()
        seen.append(node.state)
    assert seen == [
        NodeState.READY,
        NodeState.READY,
        NodeState.SUSPECT,
        NodeState.SUSPECT,
        NodeState.LOST,
    ]
    assert node.record.lost
    nodes.touch(node)
    assert node.state is NodeState.READY
    kinds = [event.change.kind for event in node.events]
    assert kinds == ["ready", "registered", "suspect", "lost", "ready"]


def test_a_heartbeat_keeps_a_node_ready() -> None:
    clock = ManualClock()
    nodes = inventory(clock)
    nodes.register(register(), 1)
    for _ in range(20):
        clock.now += 10
        nodes.touch(nodes.nodes["gpu-1"])
        nodes.expire()
        assert nodes.nodes["gpu-1"].state is NodeState.READY


def test_a_wall_clock_that_jumps_makes_no_node_lost_and_none_ready() -> None:
    clock, wall = ManualClock(), ManualClock()
    nodes = Inventory(LIMITS, clock=clock, wall=wall)
    nodes.register(register(), 1)
    for jump in (1e9, -2e9):
        wall.now += jump
        nodes.expire()
        assert nodes.nodes["gpu-1"].state is NodeState.READY
    clock.now += 120
    wall.now -= 120
    nodes.expire()
    assert nodes.nodes["gpu-1"].state is NodeState.LOST


def test_a_new_leader_awaits_whom_it_must_know_until_they_come_or_grace_ends() -> None:
    clock = ManualClock()
    nodes = inventory(clock)
    nodes.expect([NodeRecord("a", 1), NodeRecord("b", 1), NodeRecord("old", 1, lost=True)])
    assert nodes.awaited() == ["a", "b"]
    nodes.register(register("a"), 1)
    assert nodes.awaited() == ["b"]
    clock.now += 59.9
    assert nodes.awaited() == ["b"]
    clock.now += 0.1
    assert nodes.awaited() == []
    nodes.expire()
    assert [nodes.nodes[name].state for name in ("b",)] == [NodeState.EXPECTED]
    clock.now += 60
    nodes.expire()
    assert [nodes.nodes[name].state for name in ("b",)] == [NodeState.LOST]


def test_nobody_is_awaited_once_all_have_registered() -> None:
    nodes = inventory(ManualClock())
    nodes.expect([NodeRecord("a", 1)])
    nodes.register(register("a"), 1)
    assert nodes.awaited() == []


def test_draining_outlives_a_leader() -> None:
    nodes = inventory(ManualClock())
    nodes.expect([NodeRecord("a", 3, draining=True)])
    nodes.register(register("a"), 1)
    assert nodes.nodes["a"].record == NodeRecord("a", 7, draining=True)


def test_an_older_incarnation_is_fenced_even_by_a_new_leader() -> None:
    nodes = inventory(ManualClock())
    nodes.expect([NodeRecord("gpu-1", 8)])
    assert nodes.register(register(incarnation=7), 1) is Verdict.STALE
    assert nodes.nodes["gpu-1"].facts is None
    assert nodes.register(register(incarnation=8), 1) is Verdict.ADMITTED


def test_an_older_incarnation_may_return_once_the_newer_is_lost() -> None:
    clock = ManualClock()
    nodes = inventory(clock)
    nodes.register(register(incarnation=9), 1)
    assert nodes.register(register(incarnation=2), 1) is Verdict.STALE
    clock.now += 121
    nodes.expire()
    assert nodes.register(register(incarnation=2), 1) is Verdict.ADMITTED
    assert nodes.nodes["gpu-1"].gate.incarnation == 2


def test_the_gate_drops_duplicates_stragglers_and_other_incarnations() -> None:
    gate = Gate()
    assert gate.register(5, 1) is Verdict.ADMITTED
    assert gate.message(5, 2) is Verdict.ADMITTED
    assert gate.message(5, 2) is Verdict.DUPLICATE
    assert gate.message(5, 9) is Verdict.ADMITTED
    assert gate.message(5, 8) is Verdict.DUPLICATE
    assert gate.message(4, 99) is Verdict.STALE
    assert gate.register(5, 9) is Verdict.DUPLICATE
    assert gate.register(5, 10) is Verdict.ADMITTED
    assert gate.register(6, 1) is Verdict.ADMITTED
    assert gate.message(5, 100) is Verdict.STALE


def test_a_heartbeat_for_a_node_that_never_registered_is_ignored() -> None:
    nodes = inventory(ManualClock())
    nodes.expect([NodeRecord("a", 1)])
    nodes.heartbeat(nodes.nodes["a"], pb.Heartbeat(memory_total_bytes=5))
    assert nodes.nodes["a"].facts is None


def test_events_are_bounded() -> None:
    clock = ManualClock()
    nodes = inventory(clock)
    nodes.register(register(), 1)
    node = nodes.nodes["gpu-1"]
    for size in range(1, 300):
        nodes.heartbeat(node, pb.Heartbeat(memory_total_bytes=size))
    assert len(node.events) == 100
    assert node.events[-1].change.after == "299"
