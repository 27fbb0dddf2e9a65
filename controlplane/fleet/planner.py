"""What to do next about the shards. Pure: the same picture gives the same plan.

Doing all actions and planning again ends in a picture for which there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from controlplane.fleet.life import AT_REST, Phase, ShardStatus
from controlplane.fleet.placement import NodeView, Room
from controlplane.fleet.setbacks import (
    AVOID_SECONDS,
    MAX_MOVES,
    MOVES_AT_ONCE,
    Setbacks,
    failing_nodes,
    is_stable,
    still_valid,
)
from controlplane.model.catalogue import Assignment, ModelSpec, Place

# How long after its own time a node gets to report that a shard has ended, before it is told again.
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Picture:
    """All that a plan depends on.

    Of an `unreadable` model it is not known what is wanted: what it has stays as long as its nodes do.
    `setbacks` are those of the plan before.
    """

    models: Mapping[str, ModelSpec]
    assignments: Mapping[str, Assignment]
    nodes: Mapping[str, NodeView]
    statuses: Mapping[str, ShardStatus]
    now: float
    unreadable: frozenset[str] = frozenset()
    setbacks: Setbacks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """Start these shards of a replica."""

    assignment: Assignment
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a shard finish its work, then end it."""

    assignment: Assignment
    place: Place


@dataclass(frozen=True, slots=True)
class Stop:
    """End a shard now."""

    assignment: Assignment
    place: Place


@dataclass(frozen=True, slots=True)
class Fail:
    """A start took too long: it counts as failed, and the shard is stopped."""

    assignment: Assignment
    place: Place
    reason: str


@dataclass(slots=True)
class Plan:
    """The actions, by kind. `unplaced` says for each replica without places why.

    `setbacks` are the nodes that replicas left because they kept failing there, for the next picture.
    """

    leave: list[Assignment] = field(default_factory=list)
    remove: list[Assignment] = field(default_factory=list)
    place: list[Assignment] = field(default_factory=list)
    fail: list[Fail] = field(default_factory=list)
    stop: list[Stop] = field(default_factory=list)
    drain: list[Drain] = field(default_factory=list)
    start: list[Start] = field(default_factory=list)
    unplaced: dict[str, str] = field(default_factory=dict)
    setbacks: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        steps = (self.leave, self.remove, self.place, self.fail, self.stop, self.drain, self.start)
        return not any(steps)


def plan(picture: Picture) -> Plan:
    """The next actions."""
    wanted = [replica for model in picture.models.values() for replica in model.replica_ids()]
    result = Plan(setbacks=still_valid(picture.setbacks, wanted, picture.now))
    kept: dict[str, Assignment] = {}
    moves = _moves(picture, result.setbacks)
    for replica, assignment in sorted(picture.assignments.items()):
        reason = assignment.leaving or _unwanted(picture, assignment) or _no_home(picture, assignment)
        reason = reason or moves.get(replica, "")
        if reason and not assignment.leaving:
            result.leave.append(replace(assignment, leaving=reason))
        if reason and _leave(picture, assignment, result):
            result.remove.append(assignment)
            continue
        kept[replica] = assignment
        if not reason:
            _keep(picture, assignment, result)
    _place(picture, kept, result)
    _roll(picture, result)
    return result


def _unwanted(picture: Picture, assignment: Assignment) -> str:
    """Why the catalogue does not want a replica; empty when it does."""
    if assignment.model in picture.unreadable:
        return ""
    model = picture.models.get(assignment.model)
    if model is None:
        return "its model was deleted"
    if assignment.replica_id not in set(model.replica_ids()):
        return f"only {model.replicas} replicas are wanted"
    return ""


def _no_home(picture: Picture, assignment: Assignment) -> str:
    """Why a replica can't stay where it is; empty when it can."""
    for place in assignment.places:
        node = picture.nodes.get(place.node_id)
        if node is None:
            return f"node {place.node_id} was forgotten"
        if node.lost:
            return f"node {place.node_id} is lost"
        if node.draining:
            return f"node {place.node_id} is draining"
    return ""


def _moves(picture: Picture, setbacks: dict[str, dict[str, float]]) -> dict[str, str]:
    """Replicas that can't start again where they are and have a place elsewhere, and why.

    Nodes on which they kept failing are noted in `setbacks`.
    """
    moves: dict[str, str] = {}
    targets: list[Assignment] = []
    for replica, assignment in sorted(picture.assignments.items()):
        model = picture.models.get(assignment.model)
        if assignment.leaving or model is None:
            continue
        if is_stable(assignment, picture.statuses, picture.now):
            setbacks.pop(replica, None)
        before = setbacks.get(replica, {})
        dead = _dead_gpus(picture, assignment)
        if dead and _elsewhere(picture, model, replica, before, targets):
            moves[replica] = f"GPU {dead[0]} can't be used any more"
            continue
        failing = failing_nodes(assignment, picture.statuses, picture.now)
        if not failing or len(before) >= MAX_MOVES or len(moves) >= MOVES_AT_ONCE:
            continue
        if _elsewhere(picture, model, replica, {*before, *failing}, targets):
            setbacks[replica] = {**before, **dict.fromkeys(failing, picture.now + AVOID_SECONDS)}
            moves[replica] = f"it kept failing on {', '.join(failing)}"
    return moves


def _dead_gpus(picture: Picture, assignment: Assignment) -> list[str]:
    """GPUs on which a start is due and that are sick by now, or gone from a node that is there."""
    dead: list[str] = []
    for place in assignment.places:
        node, status = picture.nodes.get(place.node_id), picture.statuses[place.shard_id]
        if node is None or not node.ready or status.phase not in AT_REST or picture.now < status.retry_at:
            continue
        usable = {gpu.uuid for gpu in node.gpus if gpu.usable}
        dead += [uuid for uuid in place.gpu_uuids if uuid not in usable]
    return dead


def _elsewhere(
    picture: Picture, model: ModelSpec, replica: str, avoid: Collection[str], targets: list[Assignment]
) -> bool:
    """Whether there is room for the replica beside all others; then it is among the `targets` too."""
    others = [other for name, other in picture.assignments.items() if name != replica]
    found = Room(picture.nodes.values(), [*others, *targets]).place(model, replica, avoid)
    if isinstance(found, Assignment):
        targets.append(found)
    return isinstance(found, Assignment)


def _leave(picture: Picture, assignment: Assignment, result: Plan) -> bool:
    """Take the steps that end a replica's shards; True once none of them is left."""
    gone = True
    for place in assignment.places:
        node, status = picture.nodes.get(place.node_id), picture.statuses[place.shard_id]
        if node is None or node.lost or status.phase in AT_REST:
            continue
        gone = False
        if node.ready:
            _end(picture, assignment, place, result)
    return gone


def _end(picture: Picture, assignment: Assignment, place: Place, result: Plan) -> None:
    """Drain what runs and stop the rest; tell a node again that has not answered for too long."""
    status, node = picture.statuses[place.shard_id], picture.nodes[place.node_id]
    seconds = assignment.profile.drain_seconds
    if status.phase is Phase.RUNNING and seconds > 0 and node.can_drain:
        result.drain.append(Drain(assignment, place))
        return
    _tell_stop(picture, assignment, place, result)


def _tell_stop(picture: Picture, assignment: Assignment, place: Place, result: Plan) -> None:
    status = picture.statuses[place.shard_id]
    patience = ANSWER_SECONDS + assignment.profile.stop_grace_seconds
    if status.phase is Phase.DRAINING:
        patience += assignment.profile.drain_seconds
    if picture.now - status.told >= patience:
        result.stop.append(Stop(assignment, place))


def _keep(picture: Picture, assignment: Assignment, result: Plan) -> None:
    """Start what is at rest; the shards of one replica live and die together."""
    statuses = {place.shard_id: picture.statuses[place.shard_id] for place in assignment.places}
    resting = [place for place in assignment.places if statuses[place.shard_id].phase in AT_REST]
    for place in assignment.places:
        status = statuses[place.shard_id]
        limit = assignment.profile.start_seconds
        if status.phase is Phase.STARTING and picture.now - status.since >= limit:
            result.fail.append(Fail(assignment, place, f"did not serve within {limit:g} s of its start"))
        elif status.phase is Phase.ENDING and picture.nodes[place.node_id].ready:
            _end(picture, assignment, place, result)
    if not resting:
        return
    if len(resting) < len(assignment.places):
        _end_group(picture, assignment, result)
        return
    due = all(picture.now >= status.retry_at for status in statuses.values())
    if due and all(_can_start(picture.nodes[place.node_id], place) for place in assignment.places):
        result.start.append(Start(assignment, assignment.places))


def _can_start(node: NodeView, place: Place) -> bool:
    """Whether the node is there, and nothing of old is in the way."""
    return node.ready and place.shard_id not in node.strays and not node.held.intersection(place.gpu_uuids)


def _end_group(picture: Picture, assignment: Assignment, result: Plan) -> None:
    """Some shards of a replica of several have ended: stop the others, then all start together."""
    for place in assignment.places:
        phase = picture.statuses[place.shard_id].phase
        if phase not in AT_REST and phase is not Phase.ENDING and picture.nodes[place.node_id].ready:
            _tell_stop(picture, assignment, place, result)


def _roll(picture: Picture, result: Plan) -> None:
    """Replace replicas whose profile has changed: broken ones at once, others one at a time."""
    leaving = {a.replica_id for a in (*result.leave, *result.remove)}
    leaving |= {replica for replica, a in picture.assignments.items() if a.leaving}
    for name, model in sorted(picture.models.items()):
        present = [a for _, a in sorted(picture.assignments.items()) if a.model == name]
        staying = [a for a in present if a.replica_id not in leaving]
        outdated = [a for a in staying if model.profile(a.profile.name) != a.profile]
        broken = [a for a in outdated if not _runs(picture, a)]
        quiet = len(staying) == len(present) and all(_runs(picture, a) for a in present)
        # Not those that have no room: they must not keep what is outdated for ever.
        awaited = set(model.replica_ids()) - set(picture.assignments) - result.unplaced.keys()
        chosen = broken or (outdated[:1] if quiet and not awaited else [])
        for assignment in chosen:
            result.setbacks.pop(assignment.replica_id, None)  # of another profile they say nothing
            result.leave.append(replace(assignment, leaving="its profile has changed"))


def _runs(picture: Picture, assignment: Assignment) -> bool:
    return all(picture.statuses[place.shard_id].phase is Phase.RUNNING for place in assignment.places)


def _place(picture: Picture, kept: Mapping[str, Assignment], result: Plan) -> None:
    """Find room for the replicas that have none."""
    room = Room(picture.nodes.values(), kept.values())
    for _, model in sorted(picture.models.items()):
        for replica in model.replica_ids():
            if replica in picture.assignments:
                continue
            found = room.place(model, replica, result.setbacks.get(replica, ()))
            if isinstance(found, str) and replica in result.setbacks:  # better there than nowhere
                found = room.place(model, replica)
            if isinstance(found, str):
                result.unplaced[replica] = found
            else:
                room.take(found)
                result.place.append(found)
