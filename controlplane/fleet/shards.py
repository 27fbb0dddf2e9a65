"""The shards as this leader sees them: statuses of those that have a place, and strays that have none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from akv.v1 import agent_pb2 as pb

from controlplane.base.backoff import Clock, Random
from controlplane.base.logging import get_logger
from controlplane.fleet import life
from controlplane.fleet.life import Phase, ShardStatus
from controlplane.model.catalogue import Assignment, Place

log = get_logger("fleet-shards")


@dataclass(frozen=True, slots=True)
class Stray:
    """A shard on a node that no place claims. It is told to stop, and holds its GPUs till then."""

    node_id: str
    shard_id: str
    generation: int
    gpu_uuids: tuple[str, ...] = ()


class Shards:
    """Statuses and strays. `changed` is called after each change; `clock` is monotonic."""

    def __init__(
        self, clock: Clock, changed: Callable[[], None] = lambda: None, uniform: Random = random.random
    ) -> None:
        self._clock = clock
        self._changed = changed
        self._uniform = uniform
        self._places: dict[str, Place] = {}
        self._strays: dict[tuple[str, str], Stray] = {}
        self.statuses: dict[str, ShardStatus] = {}

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """These assignments hold now, new ones or with new generations."""
        for assignment in assignments:
            for place in assignment.places:
                self._places[place.shard_id] = place
                if place.shard_id not in self.statuses:
                    self.statuses[place.shard_id] = life.placed(
                        place.generation, self._clock(), place.failures
                    )

    def drop(self, assignments: Iterable[Assignment]) -> None:
        """These assignments are no more."""
        for assignment in assignments:
            for place in assignment.places:
                self._places.pop(place.shard_id, None)
                self.statuses.pop(place.shard_id, None)

    def forget(self, node_id: str) -> None:
        """The node is no more, and so are its strays."""
        self._strays = {key: stray for key, stray in self._strays.items() if key[0] != node_id}

    def stray(self, node_id: str, shard_id: str) -> Stray | None:
        """The stray of that id on a node."""
        return self._strays.get((node_id, shard_id))

    def strays_by_node(self) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
        """Of each node that has strays: their GPUs, and their ids."""
        nodes = {node for node, _ in self._strays}
        return {node: self.held(node) for node in nodes}, {node: self.stray_shards(node) for node in nodes}

    def stray_shards(self, node_id: str) -> frozenset[str]:
        """Ids of strays on a node."""
        return frozenset(shard for node, shard in self._strays if node == node_id)

    def held(self, node_id: str) -> frozenset[str]:
        """GPUs of strays on a node."""
        strays = (stray for stray in self._strays.values() if stray.node_id == node_id)
        return frozenset(uuid for stray in strays for uuid in stray.gpu_uuids)

    def adopt(self, node_id: str, running: Iterable[pb.RunningShard]) -> list[Stray]:
        """Take over what a node runs; the strays, which are to be stopped.

        An empty list says as much as a full one: what should run there does not.
        """
        present = {shard.shard_id: shard for shard in running}
        self.forget(node_id)
        for place in [place for place in self._places.values() if place.node_id == node_id]:
            found = present.get(place.shard_id)
            if found is not None and found.generation == place.generation:
                del present[place.shard_id]
                self._set(place.shard_id, life.adopted(self.statuses[place.shard_id], found, self._clock()))
            else:
                self._set(
                    place.shard_id, life.missing(self.statuses[place.shard_id], self._clock(), self._delay)
                )
        strays = [
            Stray(node_id, shard.shard_id, shard.generation, tuple(shard.gpu_uuids))
            for shard in present.values()
        ]
        self._strays.update({(node_id, stray.shard_id): stray for stray in strays})
        self._changed()
        return strays

    def on_event(self, node_id: str, event: pb.ShardEvent) -> Stray | None:
        """A node's word on one of its shards; a stray to stop if nothing claims what it has."""
        if self._claims(node_id, event.shard_id, event.generation):
            before = self.statuses[event.shard_id]
            self._set(event.shard_id, life.on_event(before, event, self._clock(), self._delay))
            return None
        return self._on_stray(node_id, event)

    def on_progress(self, node_id: str, progress: pb.ShardProgress) -> None:
        """How far a start is."""
        if self._claims(node_id, progress.shard_id, progress.generation):
            status = self.statuses[progress.shard_id]
            self.statuses[progress.shard_id] = life.on_progress(status, progress)

    def refused(self, shard_id: str, generation: int, reason: str) -> None:
        """The node refused to start it."""
        status = self.statuses.get(shard_id)
        if status is not None and status.generation == generation and status.phase not in life.AT_REST:
            self._set(shard_id, life.failed(status, reason, self._clock(), self._delay))

    def ending(self, shard_id: str, generation: int, reason: str) -> None:
        """A start came to nothing in time."""
        status = self.statuses.get(shard_id)
        if status is not None and status.generation == generation:
            self._set(shard_id, life.ending(status, reason, self._clock()))

    def gone(self, node_id: str, shard_id: str, generation: int) -> None:
        """The node does not have what it was told to end."""
        if self._claims(node_id, shard_id, generation):
            self._set(shard_id, life.gone(self.statuses[shard_id], self._clock(), self._delay))
        elif self._strays.pop((node_id, shard_id), None) is not None:
            self._changed()

    def started(self, place: Place) -> None:
        """The node was told to start it."""
        self._set(
            place.shard_id, life.starting(self.statuses[place.shard_id], place.generation, self._clock())
        )

    def drained(self, place: Place) -> None:
        """The node was told to drain it."""
        self._set(place.shard_id, life.draining(self.statuses[place.shard_id], self._clock()))

    def stopping(self, place: Place) -> None:
        """The node was told to stop it."""
        self._set(place.shard_id, life.told_to_stop(self.statuses[place.shard_id], self._clock()))

    def _on_stray(self, node_id: str, event: pb.ShardEvent) -> Stray | None:
        key = (node_id, event.shard_id)
        if event.state in {pb.SHARD_STATE_STOPPED, pb.SHARD_STATE_FAILED}:
            if self._strays.get(key) and self._strays[key].generation == event.generation:
                del self._strays[key]
                self._changed()
            return None
        if key in self._strays or event.state == pb.SHARD_STATE_UNSPECIFIED:
            return None
        stray = Stray(node_id, event.shard_id, event.generation)
        self._strays[key] = stray
        return stray

    def _claims(self, node_id: str, shard_id: str, generation: int) -> bool:
        place = self._places.get(shard_id)
        return place is not None and place.node_id == node_id and place.generation == generation

    def _delay(self, failures: int) -> float:
        return life.retry_delay(failures) * (1.0 - self._uniform() / 2.0)

    def _set(self, shard_id: str, status: ShardStatus) -> None:
        before = self.statuses[shard_id]
        if status == before:
            return
        self.statuses[shard_id] = status
        if status.phase is not before.phase or before.unheard > status.unheard:
            _tell(self._places[shard_id], before, status)
        self._changed()


def _tell(place: Place, before: ShardStatus, status: ShardStatus) -> None:
    write = log.error if status.phase is Phase.FAILED else log.info
    write(
        "shard " + status.phase.value,
        node=place.node_id,
        shard=place.shard_id,
        generation=place.generation,
        before=before.phase.value,
        reason=status.reason,
        exit_code=status.exit_code,
        last_output=list(status.last_output[-5:]) if status.phase is Phase.FAILED else None,
    )


def head_address(assignment: Assignment, addresses: Mapping[str, str]) -> str:
    """ADDR:PORT of the first shard of a replica of several nodes; empty for one node."""
    if len(assignment.places) < 2:
        return ""
    address = addresses.get(assignment.places[0].node_id, "")
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{assignment.profile.port}"
