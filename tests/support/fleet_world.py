"""A world without I/O for the planner: nodes that do what they are told, fail, fall silent and come back.

It keeps the truth (which processes run where) apart from what the leader believes, and checks both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from akv.v1 import agent_pb2 as pb

from controlplane.fleet.life import AT_REST, Phase
from controlplane.fleet.placement import GpuView, NodeView
from controlplane.fleet.planner import Picture, Plan, plan
from controlplane.fleet.setbacks import Setbacks
from controlplane.fleet.shards import Shards
from controlplane.model.catalogue import Assignment, ModelSpec, Place, Profile


def profile(name: str = "p", **fields: object) -> Profile:
    return replace(Profile(name, "vllm", gpus=1), **fields)  # type: ignore[arg-type]


def model(replicas: int = 1, *profiles: Profile, name: str = "m") -> ModelSpec:
    return ModelSpec(name, replicas, profiles or (profile(),))


@dataclass
class Process:
    """A shard that really runs."""

    place: Place
    state: pb.ShardState.ValueType = pb.SHARD_STATE_STARTING


@dataclass
class WorldNode:
    """One node: what it has, whether it is heard, and what really runs there."""

    name: str
    gpus: int
    heard: bool = True
    lost: bool = False
    draining: bool = False
    sick: set[int] = field(default_factory=set)
    fabrics: frozenset[str] = frozenset({"ib0"})
    processes: dict[str, Process] = field(default_factory=dict)

    def uuid(self, index: int) -> str:
        return f"{self.name}-gpu{index}"


class World:
    """The leader's records and beliefs, and the nodes."""

    def __init__(self, nodes: Iterable[WorldNode]) -> None:
        self.now = 1000.0
        self.nodes = {node.name: node for node in nodes}
        self.models: dict[str, ModelSpec] = {}
        self.assignments: dict[str, Assignment] = {}
        self.shards = Shards(lambda: self.now, uniform=lambda: 0.0)
        self.unplaceable: frozenset[str] = frozenset()
        self.setbacks: Setbacks = {}
        self.refuse_starts: set[str] = set()
        self.silent_starts: set[str] = set()
        self._generations = itertools.count(1)
        self.started: list[tuple[str, str]] = []

    def picture(self) -> Picture:
        return Picture(
            dict(self.models),
            dict(self.assignments),
            {name: self.view(node) for name, node in self.nodes.items()},
            self.shards.statuses,
            self.now,
            setbacks=self.setbacks,
        )

    def view(self, node: WorldNode) -> NodeView:
        gpus = tuple(GpuView(node.uuid(n), "H100", 80 << 30, n not in node.sick) for n in range(node.gpus))
        return NodeView(
            node.name,
            ready=node.heard,
            lost=node.lost,
            draining=node.draining,
            gpus=gpus,
            memory_bytes=1 << 40,
            engines={"vllm": "1"},
            fabrics=node.fabrics,
            held=self.shards.held(node.name),
            strays=self.shards.stray_shards(node.name),
        )

    def step(self) -> Plan:
        """Plan once and do it; the plan."""
        todo = plan(self.picture())
        self.unplaceable, self.setbacks = frozenset(todo.unplaced), todo.setbacks
        self._write(todo)
        for late in todo.fail:
            self.shards.ending(late.place.shard_id, late.place.generation, late.reason)
        for stop in todo.stop:
            self.shards.stopping(stop.place)
            self._end(stop.place)
        for drain in todo.drain:
            self.shards.drained(drain.place)
            self._end(drain.place)
        for start in todo.start:
            self._start(start.assignment)
        self.check()
        return todo

    def settle(self, limit: int = 200) -> None:
        """Plan until there is nothing to do, letting time pass where only time is missing."""
        for _ in range(limit):
            if self.step().empty and not self._waits():
                return
            self.now += 5.0
            self._serve()
        raise AssertionError(f"no end: {plan(self.picture())}, {self.shards.statuses}")

    def check(self) -> None:
        """What must always hold."""
        seen: set[str] = set()
        for assignment in self.assignments.values():
            uuids = [uuid for place in assignment.places for uuid in place.gpu_uuids]
            assert not seen.intersection(uuids), f"two places on one GPU: {uuids}"
            assert len(set(uuids)) == len(uuids)
            seen.update(uuids)
        for node in self.nodes.values():
            used = [uuid for process in node.processes.values() for uuid in process.place.gpu_uuids]
            assert len(set(used)) == len(used), f"two processes on one GPU of {node.name}"

    # --- what happens to nodes ---

    def silence(self, name: str, *, lost: bool) -> None:
        self.nodes[name].heard = False
        self.nodes[name].lost = lost

    def restore(self, name: str) -> None:
        """The node is heard again: it registers with what really runs there."""
        node = self.nodes[name]
        node.heard, node.lost = True, False
        running = [
            pb.RunningShard(
                shard_id=shard,
                generation=process.place.generation,
                state=process.state,
                gpu_uuids=process.place.gpu_uuids,
            )
            for shard, process in node.processes.items()
        ]
        for stray in self.shards.adopt(name, running):
            self._end(Place(stray.shard_id, name, 0, stray.gpu_uuids, stray.generation))

    def crash(self, name: str) -> None:
        """Every process of a node dies."""
        for shard in list(self.nodes[name].processes):
            self._report(self.nodes[name], shard, pb.SHARD_STATE_FAILED)

    def new_leader(self) -> None:
        """Beliefs are lost, records are not; every node that is heard registers anew."""
        self.shards = Shards(lambda: self.now, uniform=lambda: 0.0)
        self.shards.assign(self.assignments.values())
        for name, node in self.nodes.items():
            if node.heard:
                self.restore(name)

    # --- carrying out ---

    def _write(self, todo: Plan) -> None:
        for assignment in todo.leave:
            self.assignments[assignment.replica_id] = assignment
        for assignment in todo.remove:
            del self.assignments[assignment.replica_id]
        self.shards.drop(todo.remove)
        for assignment in todo.place:
            assert assignment.replica_id not in self.assignments
            self.assignments[assignment.replica_id] = assignment
            for place in assignment.places:
                node = self.nodes[place.node_id]
                assert node.heard, f"placed on {node.name}, which is not heard"
                assert not node.draining, f"placed on {node.name}, which is draining"
        self.shards.assign(todo.place)

    def _start(self, assignment: Assignment) -> None:
        number = next(self._generations)
        places = tuple(
            replace(place, generation=number, failures=self.shards.statuses[place.shard_id].failures)
            for place in assignment.places
        )
        fresh = replace(assignment, places=places)
        self.assignments[fresh.replica_id] = fresh
        self.shards.assign([fresh])
        for place in places:
            node = self.nodes[place.node_id]
            assert node.heard, f"started on {node.name}, which is suspect"
            self.shards.started(place)
            self.started.append((place.node_id, place.shard_id))
            assert place.shard_id not in node.processes, f"{place.shard_id} started while it runs"
            if node.name in self.refuse_starts:
                self.shards.refused(place.shard_id, place.generation, "refused")
            else:
                node.processes[place.shard_id] = Process(place)
        self.check()

    def _serve(self) -> None:
        """Starting processes begin to serve, unless their node is one of slow starts."""
        for node in self.nodes.values():
            for shard, process in list(node.processes.items()):
                if process.state == pb.SHARD_STATE_STARTING and node.name not in self.silent_starts:
                    process.state = pb.SHARD_STATE_RUNNING
                    if node.heard:
                        self._tell(node, shard, process, pb.SHARD_STATE_RUNNING)

    def _end(self, place: Place) -> None:
        node = self.nodes[place.node_id]
        assert node.heard
        if place.shard_id in node.processes:
            self._report(node, place.shard_id, pb.SHARD_STATE_STOPPED)
        else:
            self.shards.gone(place.node_id, place.shard_id, place.generation)

    def _report(self, node: WorldNode, shard: str, state: pb.ShardState.ValueType) -> None:
        process = node.processes.pop(shard)
        if node.heard:
            self._tell(node, shard, process, state)

    def _tell(self, node: WorldNode, shard: str, process: Process, state: pb.ShardState.ValueType) -> None:
        generation = process.place.generation
        self.shards.on_event(node.name, pb.ShardEvent(shard_id=shard, generation=generation, state=state))

    def _waits(self) -> bool:
        """Whether time alone will bring something about."""
        for assignment in self.assignments.values():
            for place in assignment.places:
                status = self.shards.statuses[place.shard_id]
                node = self.nodes[place.node_id]
                if not node.heard and not node.lost:
                    continue
                others = [self.nodes[p.node_id] for p in assignment.places]
                if status.phase in {Phase.STARTING, Phase.ENDING, Phase.DRAINING} and node.heard:
                    return True
                if status.phase in AT_REST and all(other.heard for other in others):
                    return True
        return False
