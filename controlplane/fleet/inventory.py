"""The nodes that this leader knows: their facts, when they were heard, and what happened to them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from akv.v1 import agent_pb2 as pb

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.fleet.facts import FactChange, NodeFacts, fold, from_register
from controlplane.fleet.gate import Gate, Verdict
from controlplane.fleet.liveness import Limits, NodeState, judge
from controlplane.model.catalogue import NodeRecord

MAX_EVENTS = 100

log = get_logger("fleet-inventory")


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A change with its wall-clock time, for display."""

    at: float
    change: FactChange


@dataclass(slots=True)
class Node:
    """One node. `heard` is monotonic and decides; `heard_at` is Unix seconds and is shown."""

    node_id: str
    gate: Gate = field(default_factory=Gate)
    facts: NodeFacts | None = None
    heard: float | None = None
    heard_at: float = 0.0
    draining: bool = False
    state: NodeState = NodeState.EXPECTED
    events: deque[NodeEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))

    @property
    def record(self) -> NodeRecord:
        """What of it outlives this leader."""
        return NodeRecord(self.node_id, self.gate.incarnation, self.draining, self.state is NodeState.LOST)


class Inventory:
    """All nodes of one term of leadership.

    `changed` is called when something changed that placement reads. `clock` is monotonic, `wall` is Unix
    seconds.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        changed: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self.limits = limits
        self._changed = changed
        self._clock = clock
        self._wall = wall
        self._led_since = clock()
        self.nodes: dict[str, Node] = {}

    def expect(self, records: Iterable[NodeRecord]) -> None:
        """Know these nodes from before; those that were lost already are not waited for."""
        for record in records:
            node = Node(record.node_id, Gate(record.incarnation), draining=record.draining)
            if record.lost:
                node.state = NodeState.LOST
            self.nodes[record.node_id] = node

    def register(self, register: pb.Register, sequence: int) -> Verdict:
        """Take a node's description of itself, unless it is an old one."""
        node = self.nodes.get(register.node_id) or Node(register.node_id)
        dead = node.state is NodeState.LOST
        verdict = node.gate.register(register.incarnation, sequence, dead=dead)
        if verdict is not Verdict.ADMITTED:
            return verdict
        self.nodes[register.node_id] = node
        node.facts = from_register(register, self._clock())
        self.touch(node)
        self._note(node, FactChange("registered", register.agent_version, "", str(register.incarnation)))
        self._changed()
        return verdict

    def heartbeat(self, node: Node, beat: pb.Heartbeat) -> None:
        """Fold what the heartbeat carries into the node's facts."""
        if node.facts is None:
            return
        before = node.facts
        node.facts, changes = fold(before, beat, self._clock())
        for change in changes:
            self._note(node, change)
        if changes or node.facts.gpus != before.gpus:
            self._changed()

    def touch(self, node: Node) -> None:
        """The node was heard just now."""
        node.heard, node.heard_at = self._clock(), self._wall()
        if node.state is not NodeState.READY:
            self._move(node, NodeState.READY)

    def expire(self) -> list[str]:
        """Move the nodes whose silence has lasted long enough; those that are lost by that."""
        now, lost = self._clock(), []
        for node in self.nodes.values():
            if node.heard is None and node.state is NodeState.LOST:
                continue
            state = judge(node.heard, self._led_since, now, self.limits)
            if state is not node.state:
                self._move(node, state)
                lost += [node.node_id] if state is NodeState.LOST else []
        return lost

    def awaited(self) -> list[str]:
        """Nodes that the leader must know and has not heard yet, while the time of grace lasts."""
        if self._clock() - self._led_since >= self.limits.grace:
            return []
        return sorted(n.node_id for n in self.nodes.values() if n.state is NodeState.EXPECTED)

    def _move(self, node: Node, state: NodeState) -> None:
        self._note(
            node,
            FactChange(state.value, "", node.state.value, state.value, warn=state is not NodeState.READY),
        )
        node.state = state
        self._changed()

    def _note(self, node: Node, change: FactChange) -> None:
        node.events.append(NodeEvent(self._wall(), change))
        (log.warning if change.warn else log.info)(
            "node " + change.kind,
            node=node.node_id,
            subject=change.subject,
            before=change.before,
            after=change.after,
        )
