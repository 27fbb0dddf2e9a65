"""Which replicas are to leave a node on which they keep failing. Pure; times are monotonic seconds.

A node that was left is avoided for a while, and a replica has so many moves within that time: one that fails
everywhere comes to rest where it is, instead of wandering over all nodes or to and fro between two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controlplane.fleet.life import STABLE_SECONDS, Phase, ShardStatus
from controlplane.model.catalogue import Assignment

# Failed starts in a row on one node.
MOVE_AFTER = 3
AVOID_SECONDS = 3600.0
MAX_MOVES = 3
# Of all replicas in one plan: what fails everywhere at once is no fault of the nodes.
MOVES_AT_ONCE = 4

# Replica to node to the second until which the node is avoided.
Setbacks = Mapping[str, Mapping[str, float]]
Statuses = Mapping[str, ShardStatus]


def still_valid(setbacks: Setbacks, wanted: Iterable[str], now: float) -> dict[str, dict[str, float]]:
    """Those of replicas that are wanted and whose time is not over."""
    valid = {
        replica: {node: until for node, until in setbacks[replica].items() if until > now}
        for replica in set(wanted) & setbacks.keys()
    }
    return {replica: nodes for replica, nodes in valid.items() if nodes}


def to_record(before: Setbacks, after: Setbacks, to_wall: float) -> dict[str, dict[str, float]]:
    """What is to be written: changed setbacks in Unix seconds, by replica; empty where none are left.

    `to_wall` is what makes Unix seconds of monotonic ones.
    """
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    return {name: {node: until + to_wall for node, until in after.get(name, {}).items()} for name in changed}


def recalled(recorded: Setbacks, now: float, to_wall: float) -> dict[str, dict[str, float]]:
    """What an earlier leader wrote. A clock that is wrong, its own or this one, avoids no node for longer."""
    return {
        name: {node: min(until - to_wall, now + AVOID_SECONDS) for node, until in nodes.items()}
        for name, nodes in recorded.items()
    }


def failing_nodes(assignment: Assignment, statuses: Statuses, now: float) -> list[str]:
    """Nodes that the replica should leave now that its next start is due."""
    there = [(place.node_id, statuses[place.shard_id]) for place in assignment.places]
    if any(now < status.retry_at for _, status in there):
        return []
    return [node for node, status in there if status.phase is Phase.FAILED and status.failures >= MOVE_AFTER]


def is_stable(assignment: Assignment, statuses: Statuses, now: float) -> bool:
    """Whether all of the replica has run for so long that its failures count no more."""
    there = [statuses[place.shard_id] for place in assignment.places]
    return all(s.phase is Phase.RUNNING and now - s.since >= STABLE_SECONDS for s in there)
