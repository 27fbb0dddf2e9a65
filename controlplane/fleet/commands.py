"""Commands to nodes about shards, and the answers that are awaited: taken, or refused and why."""

from __future__ import annotations

from dataclasses import dataclass

from akv.v1 import agent_pb2 as pb

from controlplane.base.backoff import Clock
from controlplane.model.catalogue import Assignment, Place

# A node answers at once that it takes a command; what comes of it is told by events.
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Command:
    """One start, stop or drain that was sent."""

    kind: str
    node_id: str
    shard_id: str
    generation: int
    sent: float


class Commands:
    """The commands whose answers are awaited. `clock` is monotonic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, Command] = {}

    def __len__(self) -> int:
        return len(self._open)

    def sent(self, kind: str, place: Place) -> str:
        """Note a command that is about to be sent; its request id."""
        request_id = f"{kind}-{place.shard_id}-{place.generation}"
        self._open[request_id] = Command(kind, place.node_id, place.shard_id, place.generation, self._clock())
        return request_id

    def unsent(self, request_id: str) -> None:
        """It could not be sent after all."""
        self._open.pop(request_id, None)

    def answered(self, node_id: str, request_id: str) -> Command | None:
        """The command that a node answers, once."""
        command = self._open.get(request_id)
        if command is None or command.node_id != node_id:
            return None
        return self._open.pop(request_id)

    def forget(self, node_id: str) -> None:
        """Await nothing of a node any more: it has told anew what it has, answers of before may be lost."""
        self._open = {key: command for key, command in self._open.items() if command.node_id != node_id}

    def overdue(self) -> list[Command]:
        """Commands that were not answered in time; each is given once."""
        now = self._clock()
        late = [key for key, command in self._open.items() if now - command.sent >= ANSWER_SECONDS]
        return [self._open.pop(key) for key in late]


def start_message(request_id: str, assignment: Assignment, place: Place, head: str) -> pb.LeaderMessage:
    """StartShard for one place; `head` is the address of the replica's first shard."""
    profile = assignment.profile
    return pb.LeaderMessage(
        start_shard=pb.StartShard(
            request_id=request_id,
            shard_id=place.shard_id,
            replica_id=assignment.replica_id,
            model=assignment.model,
            profile=profile.name,
            generation=place.generation,
            engine=profile.engine,
            engine_version=profile.engine_version,
            arguments=profile.arguments,
            environment=profile.environment,
            gpu_uuids=place.gpu_uuids,
            memory_bytes=profile.memory_bytes,
            port=profile.port,
            weights=profile.weights,
            health_path=profile.health_path,
            rank=place.rank,
            world_size=len(assignment.places),
            head_address=head,
            gateway=profile.gateway,
            stop_grace_seconds=profile.stop_grace_seconds,
            drain_path=profile.drain_path,
            drain_signal=profile.drain_signal,
        )
    )


def stop_message(request_id: str, place: Place) -> pb.LeaderMessage:
    """StopShard for this start of a shard."""
    stop = pb.StopShard(request_id=request_id, shard_id=place.shard_id, generation=place.generation)
    return pb.LeaderMessage(stop_shard=stop)


def drain_message(request_id: str, place: Place, seconds: float) -> pb.LeaderMessage:
    """DrainShard for this start of a shard."""
    drain = pb.DrainShard(
        request_id=request_id, shard_id=place.shard_id, generation=place.generation, seconds=seconds
    )
    return pb.LeaderMessage(drain_shard=drain)
