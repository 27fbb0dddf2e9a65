"""One term of leadership: everything that this leader knows of the fleet. It ends with the leadership."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from akv.v1 import agent_pb2 as pb

from controlplane.base.backoff import Clock, Random
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import InvalidRequest, RequestError
from controlplane.fleet.connections import Connection, Connections, Ending
from controlplane.fleet.facts import NodeFacts
from controlplane.fleet.gate import Verdict
from controlplane.fleet.inventory import Inventory, Node
from controlplane.fleet.liveness import Limits
from controlplane.fleet.reconciler import Reconciler
from controlplane.fleet.register import check_register
from controlplane.fleet.requests import Requests
from controlplane.fleet.scans import FabricScans
from controlplane.fleet.shards import Shards
from controlplane.store.fleet import FleetLedger

log = get_logger("fleet")


class Term:
    """The leader's picture and its loop. `clock` is monotonic, `wall` is Unix seconds."""

    def __init__(
        self,
        ledger: FleetLedger,
        limits: Limits,
        *,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        uniform: Random = random.random,
    ) -> None:
        self.ledger = ledger
        self.limits = limits
        self.clock = clock
        self.wall = wall
        self.wake = asyncio.Event()
        # Held by who changes the catalogue, from its look at what is there to the end of the write.
        self.catalogue = asyncio.Lock()
        self.inventory = Inventory(limits, changed=self.wake.set, clock=clock, wall=wall)
        self.connections = Connections()
        self.requests = Requests(self.connections)
        self.scans = FabricScans(self.inventory, self.connections, self.requests, wall)
        self.shards = Shards(clock, self.wake.set, uniform)
        self.reconciler = Reconciler(
            ledger, self.inventory, self.connections, self.shards, self.wake, clock, wall
        )
        self._handlers: dict[str, Callable[[Node, Any], None]] = {
            "heartbeat": self.inventory.heartbeat,
            "shard_event": self._shard_event,
            "shard_progress": lambda node, said: self.shards.on_progress(node.node_id, said),
            "command_answer": self._command_answer,
            "logs_answer": self._answer,
            "fabric_scan_answer": self._answer,
            "fabric_test_listening": self._answer,
            "fabric_test_answer": self._answer,
            "remove_weights_answer": self._answer,
        }

    async def open(self) -> None:
        """Read what earlier leaders wrote down. Raises StoreError."""
        await self.ledger.load()
        for problem in self.ledger.records.problems:
            log.error("fleet record ignored", problem=problem)
        self.inventory.expect(self.ledger.records.nodes.values())
        self.shards.assign(self.ledger.records.assignments.values())
        self.reconciler.recall()

    def close(self, ending: Ending) -> None:
        """End every stream."""
        self.connections.end_all(ending)

    def welcome(self, connection: Connection, register: pb.Register) -> None:
        """Make the stream the node's, take over what runs there, and stop what nothing claims."""
        self.connections.attach(connection)
        self.reconciler.welcomed(connection.node_id)
        for stray in self.shards.adopt(connection.node_id, register.running_shards):
            self.reconciler.stop_stray(stray)
        self.wake.set()

    def provision(self, facts: NodeFacts) -> pb.Provision:
        """What of the engines wanted the node can install; nothing is told too, it ends what was wanted."""
        return pb.Provision(
            engines=[
                pb.EngineWant(engine=want.engine, version=want.version, variant=want.variant)
                for want in self.ledger.records.engines
                if want.engine in facts.installable
            ]
        )

    def provision_all(self) -> None:
        """Tell every connected node what it should have installed now; others hear it when they register."""
        for node_id in self.connections.nodes():
            facts = self.inventory.nodes[node_id].facts
            if facts is None:
                continue
            try:
                self.connections.send(node_id, pb.LeaderMessage(provision=self.provision(facts)))
            except RequestError as error:
                log.warning("node not provisioned", node=node_id, reason=str(error))

    def handle(self, connection: Connection, message: pb.AgentMessage) -> None:
        """Take one message of an open stream, unless it is a duplicate or of an older incarnation."""
        if connection.ended.done():
            return  # read before the stream's end reached its reader: nothing counts any more
        node = self.inventory.nodes[connection.node_id]
        kind = message.WhichOneof("message")
        if kind == "register":
            self._register_again(connection, message)
            return
        verdict = node.gate.message(connection.incarnation, message.sequence)
        if verdict is not Verdict.ADMITTED:
            log.warning("message dropped", node=node.node_id, kind=kind, verdict=verdict.value)
            return
        self.inventory.touch(node)
        if kind is None:
            log.info("message of a later version ignored", node=node.node_id)
        else:
            self._handlers[kind](node, getattr(message, kind))

    def _register_again(self, connection: Connection, message: pb.AgentMessage) -> None:
        """The node's hardware changed. What runs there was taken over when the stream began."""
        register = message.register
        if (register.node_id, register.incarnation) != (connection.node_id, connection.incarnation):
            raise InvalidRequest(
                f"a stream is of one node and one incarnation: it is {connection.node_id}'s, and now "
                f"{register.node_id[:80]!r} registers on it"
            )
        check_register(register)
        verdict = self.inventory.register(register, message.sequence)
        if verdict is not Verdict.ADMITTED:
            log.warning("message dropped", node=register.node_id, kind="register", verdict=verdict.value)

    def _shard_event(self, node: Node, event: pb.ShardEvent) -> None:
        stray = self.shards.on_event(node.node_id, event)
        if stray is not None:
            self.reconciler.stop_stray(stray)

    def _command_answer(self, node: Node, answer: pb.CommandAnswer) -> None:
        self.reconciler.answered(node.node_id, answer.request_id, answer.error, answer.gone)

    def _answer(self, node: Node, answer: Any) -> None:
        self.requests.answered(node.node_id, answer)
