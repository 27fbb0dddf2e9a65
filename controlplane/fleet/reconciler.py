"""Carries out what the planner says: writes down first what it is about to do, then tells the nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace

import grpc

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.fleet import commands
from controlplane.fleet.commands import Commands
from controlplane.fleet.connections import Connections, Ending
from controlplane.fleet.inventory import Inventory
from controlplane.fleet.life import Phase
from controlplane.fleet.planner import Drain, Picture, Plan, Start, Stop, plan
from controlplane.fleet.setbacks import Setbacks, recalled, to_record
from controlplane.fleet.shards import Shards, Stray, head_address
from controlplane.fleet.views import NodeViews
from controlplane.model.catalogue import Assignment, Place
from controlplane.store.election import LeadershipLost
from controlplane.store.errors import StoreError
from controlplane.store.fleet import FleetLedger

TICK_SECONDS = 1.0
# While nothing changes and all shards run, a plan is made this seldom.
QUIET_SECONDS = 5.0
# Changes that come together are planned for together; planning takes at most a fifth of the time, unless a
# look takes longer than a quarter of a tick.
SETTLE_SECONDS = 0.05
SETTLE_FACTOR = 4.0
_COUNTER_BITS = 20

log = get_logger("fleet-reconciler")


class Reconciler:
    """The loop of one term. `wake` makes it look at once; `clock` is monotonic, `wall` is Unix seconds."""

    def __init__(
        self,
        ledger: FleetLedger,
        inventory: Inventory,
        connections: Connections,
        shards: Shards,
        wake: asyncio.Event,
        clock: Clock,
        wall: Clock,
    ) -> None:
        self._ledger = ledger
        self._inventory = inventory
        self._connections = connections
        self._shards = shards
        self._wake = wake
        self._clock = clock
        self._wall = wall
        self._commands = Commands(clock)
        self._views = NodeViews(inventory, connections, shards)
        self._starts = 0
        self._due = True
        self._planned = clock()
        self._trouble = ""
        self.setbacks: Setbacks = {}
        self.unplaced: dict[str, str] = {}
        self.waiting = "the leader has just begun"

    def recall(self) -> None:
        """Take over what earlier leaders learned of nodes on which replicas keep failing."""
        self.setbacks = recalled(self._ledger.records.setbacks, self._clock(), self._to_wall())

    async def run(self) -> None:
        """Work until cancelled. Raises LeadershipLost."""
        while True:
            began = self._clock()
            self._due = self._due or self._wake.is_set()
            self._wake.clear()
            acted = await self._try_step()
            took = self._clock() - began
            await asyncio.sleep(min(max(SETTLE_SECONDS, SETTLE_FACTOR * took), TICK_SECONDS))
            if not acted:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._wake.wait()

    async def step(self) -> bool:
        """Look once and do what is to be done; whether there was anything. Raises StoreError."""
        self._lose_silent()
        self._connections.end_stalled(self._clock(), self._inventory.limits.write)
        await self._save_nodes()
        self._give_up_commands()
        awaited = self._inventory.awaited()
        self.waiting = _waiting(awaited)
        if awaited or not self._is_due():
            return False
        self._ledger.check()
        todo = plan(self.picture())
        # What leaves makes room: the next plan says for whom, and nothing else would ask for it.
        self._due, self._planned = bool(todo.leave or todo.remove), self._clock()
        self.unplaced = todo.unplaced
        await self._save_setbacks(todo.setbacks)
        await self._carry_out(todo)
        return not todo.empty

    def _is_due(self) -> bool:
        """Whether a plan could say something new: after a change, while shards wait, and now and then."""
        if self._due or self._clock() - self._planned >= QUIET_SECONDS:
            return True
        return any(status.phase is not Phase.RUNNING for status in self._shards.statuses.values())

    def picture(self) -> Picture:
        """What the next plan depends on."""
        records = self._ledger.records
        return Picture(
            models=records.models,
            assignments=records.assignments,
            nodes=self._views.all(records.assignments),
            statuses=self._shards.statuses,
            now=self._clock(),
            unreadable=frozenset(records.unreadable_models),
            setbacks=self.setbacks,
        )

    def welcomed(self, node_id: str) -> None:
        """The node's new stream has begun: what it has is told by its Register, and by no answer."""
        self._commands.forget(node_id)

    def answered(self, node_id: str, request_id: str, error: str, gone: bool) -> None:
        """A node's answer to a start, stop or drain."""
        command = self._commands.answered(node_id, request_id)
        if command is None:
            return
        if gone and command.kind != "start":
            self._shards.gone(node_id, command.shard_id, command.generation)
        elif error:
            log.warning("command refused", node=node_id, command=request_id, reason=error)
            if command.kind == "start":
                reason = f"its node refused the start: {error}"
                self._shards.refused(command.shard_id, command.generation, reason)

    async def _try_step(self) -> bool:
        try:
            acted = await self.step()
        except LeadershipLost:
            raise
        except StoreError as error:
            if str(error) != self._trouble:
                log.warning("nothing placed", reason=str(error))
            self._trouble = str(error)
            return False
        self._trouble = ""
        return acted

    def _lose_silent(self) -> None:
        """End the streams of nodes that are lost: one that hangs answers pings.

        What it has goes elsewhere now, so before it counts again it has to say what runs there.
        """
        silence = f"nothing was heard of this node for {self._inventory.limits.lost:g} s: register anew"
        self._connections.end_those(self._inventory.expire(), Ending(grpc.StatusCode.ABORTED, silence))

    async def _save_nodes(self) -> None:
        known = self._ledger.records.nodes
        records = [node.record for node in self._inventory.nodes.values()]
        fresh = [record for record in records if known.get(record.node_id) != record]
        if fresh:
            await self._ledger.put_nodes(fresh)

    async def _save_setbacks(self, setbacks: Setbacks) -> None:
        """Write them down before anything that they led to: else a new leader would move a replica again."""
        changed = to_record(self.setbacks, setbacks, self._to_wall())
        if changed:
            await self._ledger.put_setbacks(changed)
        self.setbacks = setbacks

    def _to_wall(self) -> float:
        return self._wall() - self._clock()

    def _give_up_commands(self) -> None:
        for command in self._commands.overdue():
            log.warning(
                "command not answered", node=command.node_id, kind=command.kind, shard=command.shard_id
            )
            stray = self._shards.stray(command.node_id, command.shard_id)
            if command.kind == "start":
                self._shards.ending(
                    command.shard_id, command.generation, "its node did not confirm the start"
                )
            elif stray is not None and self._connections.is_open(command.node_id):
                self.stop_stray(stray)  # one without a stream tells what it has when it is back

    async def _carry_out(self, todo: Plan) -> None:
        if todo.leave:
            await self._ledger.put_assignments(todo.leave)
            for assignment in todo.leave:
                log.info("replica leaves", replica=assignment.replica_id, reason=assignment.leaving)
        for late in todo.fail:
            self._shards.ending(late.place.shard_id, late.place.generation, late.reason)
        for stop in todo.stop:
            self._stop(stop)
        for drain in todo.drain:
            self._drain(drain)
        if todo.remove:
            await self._ledger.delete_assignments([a.replica_id for a in todo.remove])
            self._shards.drop(todo.remove)
        if todo.place:
            await self._ledger.put_assignments(todo.place)
            self._shards.assign(todo.place)
            for assignment in todo.place:
                nodes = [place.node_id for place in assignment.places]
                log.info("replica placed", replica=assignment.replica_id, nodes=nodes)
        await self._start(todo.start)

    async def _start(self, starts: Iterable[Start]) -> None:
        """Number the starts, write them down, and only then tell the nodes."""
        numbered = [self._numbered(start) for start in starts]
        if not numbered:
            return
        await self._ledger.put_assignments(numbered)
        self._shards.assign(numbered)
        for assignment in numbered:
            for place in assignment.places:
                self._shards.started(place)
                self._send_start(assignment, place)

    def _numbered(self, start: Start) -> Assignment:
        """A number for the start above those of all earlier leaders, and the failures before it."""
        self._starts += 1
        generation = (self._ledger.term << _COUNTER_BITS) + self._starts
        statuses = self._shards.statuses
        places = tuple(
            replace(place, generation=generation, failures=statuses[place.shard_id].failures)
            for place in start.assignment.places
        )
        return replace(start.assignment, places=places)

    def _send_start(self, assignment: Assignment, place: Place) -> None:
        nodes = self._inventory.nodes  # without one that was forgotten while the start was written down
        addresses = {
            p.node_id: facts.register.address or facts.register.hostname
            for p in assignment.places
            if p.node_id in nodes and (facts := nodes[p.node_id].facts) is not None
        }
        request_id = self._commands.sent("start", place)
        message = commands.start_message(request_id, assignment, place, head_address(assignment, addresses))
        try:
            self._connections.send(place.node_id, message)
        except RequestError as error:
            self._commands.unsent(request_id)
            self._shards.refused(place.shard_id, place.generation, str(error))

    def stop_stray(self, stray: Stray) -> None:
        """End a shard that nothing claims; told again until it is gone."""
        log.warning("stopping an unclaimed shard", node=stray.node_id, shard=stray.shard_id)
        self._send_stop(Place(stray.shard_id, stray.node_id, 0, stray.gpu_uuids, stray.generation))

    def _stop(self, stop: Stop) -> None:
        self._shards.stopping(stop.place)
        self._send_stop(stop.place)

    def _send_stop(self, place: Place) -> None:
        """Tell a node; what can't be sent now is said again when the answer is overdue."""
        request_id = self._commands.sent("stop", place)
        try:
            self._connections.send(place.node_id, commands.stop_message(request_id, place))
        except RequestError as error:
            log.warning("shard not stopped yet", shard=place.shard_id, node=place.node_id, reason=str(error))

    def _drain(self, drain: Drain) -> None:
        place, seconds = drain.place, drain.assignment.profile.drain_seconds
        request_id = self._commands.sent("drain", place)
        try:
            self._connections.send(place.node_id, commands.drain_message(request_id, place, seconds))
        except RequestError as error:
            self._commands.unsent(request_id)
            log.warning("shard not drained yet", shard=place.shard_id, node=place.node_id, reason=str(error))
        else:
            self._shards.drained(place)


def _waiting(awaited: list[str]) -> str:
    if not awaited:
        return ""
    names = ", ".join(awaited[:5]) + (f" and {len(awaited) - 5} more" if len(awaited) > 5 else "")
    return f"the leader is new and waits for {names}"
