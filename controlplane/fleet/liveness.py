"""Silence of a node in two stages: suspect, then lost. Pure; times are monotonic seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class NodeState(Enum):
    """What the leader makes of a node."""

    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"
    EXPECTED = "expected"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. A new leader waits `grace` for the nodes that it must know before it places anything.

    A message that a node's stream does not take within `write` ends that stream.
    """

    heartbeat: float = 5.0
    suspect: float = 15.0
    lost: float = 120.0
    grace: float = 60.0
    write: float = 30.0


def judge(heard: float | None, led_since: float, now: float, limits: Limits) -> NodeState:
    """The state of a node that was last heard at `heard`; None: not since this leader leads."""
    silence = now - (led_since if heard is None else heard)
    if silence >= limits.lost:
        return NodeState.LOST
    if heard is None:
        return NodeState.EXPECTED
    return NodeState.SUSPECT if silence >= limits.suspect else NodeState.READY
