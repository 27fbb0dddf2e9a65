"""The life of one shard as the leader sees it. Pure: events and times in, a new status out.

Times are monotonic seconds. Whatever belongs to another start (generation) is not heard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from akv.v1 import agent_pb2 as pb

FIRST_RETRY_SECONDS = 2.0
LONGEST_RETRY_SECONDS = 300.0
# Who ran this long before it failed begins a new row of failures.
STABLE_SECONDS = 600.0
MAX_OUTPUT_LINES = 50
MAX_LINE = 1000


class Phase(Enum):
    """Where a shard is."""

    PENDING = "pending"  # has a place, was not started yet
    UNKNOWN = "unknown"  # started by an earlier leader; its node was not heard yet
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDING = "ending"  # its start failed in the leader's eyes; it is not known to have ended yet
    STOPPED = "stopped"
    FAILED = "failed"


# No process of it exists, as far as its node knows.
AT_REST = frozenset({Phase.PENDING, Phase.STOPPED, Phase.FAILED})

_PHASES = {
    pb.SHARD_STATE_STARTING: Phase.STARTING,
    pb.SHARD_STATE_RUNNING: Phase.RUNNING,
    pb.SHARD_STATE_DRAINING: Phase.DRAINING,
    pb.SHARD_STATE_STOPPED: Phase.STOPPED,
    pb.SHARD_STATE_FAILED: Phase.FAILED,
}

# failures in a row -> seconds to wait.
RetryDelay = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard. `since` is the begin of its phase; `told` when the node was last told to end it.

    `last_output` and `exit_code` are of the last start that ended. `unheard`: it ended while its node had no
    stream, and the node may still tell how.
    """

    phase: Phase
    generation: int
    since: float
    reason: str = ""
    failures: int = 0
    retry_at: float = 0.0
    told: float = float("-inf")
    port: int = 0
    progress: pb.ShardProgress | None = None
    last_output: tuple[str, ...] = ()
    exit_code: int | None = None
    unheard: bool = False


def retry_delay(failures: int) -> float:
    """Seconds before the next start: doubled with each failure in a row, up to five minutes."""
    exponent = min(max(failures, 1) - 1, 16)
    return min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0**exponent)


def placed(generation: int, now: float, failures: int = 0) -> ShardStatus:
    """A shard with a place: `generation` 0 was never started, any other by an earlier leader.

    `failures` are those in a row before that start.
    """
    phase = Phase.UNKNOWN if generation else Phase.PENDING
    return ShardStatus(phase, generation, now, failures=failures)


def starting(status: ShardStatus, generation: int, now: float) -> ShardStatus:
    """Its node was told to start it. How the start before it ended stays to be seen."""
    return ShardStatus(
        Phase.STARTING,
        generation,
        now,
        failures=status.failures,
        last_output=status.last_output,
        exit_code=status.exit_code,
    )


def failed(status: ShardStatus, reason: str, now: float, delay: RetryDelay = retry_delay) -> ShardStatus:
    """It ended by itself, or its start did not come to anything."""
    stable = status.phase is Phase.RUNNING and now - status.since >= STABLE_SECONDS
    failures = 1 if stable else status.failures + 1
    return replace(
        status,
        phase=Phase.FAILED,
        since=now,
        reason=reason,
        failures=failures,
        retry_at=now + delay(failures),
        progress=None,
    )


def stopped(status: ShardStatus, now: float, delay: RetryDelay = retry_delay) -> ShardStatus:
    """It ended because it was told to, by the leader or by someone on the node."""
    return replace(
        status, phase=Phase.STOPPED, since=now, reason="stopped", retry_at=now + delay(1), progress=None
    )


def gone(status: ShardStatus, now: float, delay: RetryDelay = retry_delay) -> ShardStatus:
    """Its node, told to end it, says that it does not have it."""
    if status.phase in AT_REST:
        return status
    if status.phase is Phase.DRAINING:
        return stopped(status, now, delay)
    return failed(status, status.reason or "its node does not have it", now, delay)


def ending(status: ShardStatus, reason: str, now: float) -> ShardStatus:
    """Its start came to nothing in time. It may exist all the same, and has to be stopped before the next."""
    if status.phase is not Phase.STARTING:
        return status
    return replace(status, phase=Phase.ENDING, since=now, reason=reason, progress=None)


def on_event(
    status: ShardStatus, event: pb.ShardEvent, now: float, delay: RetryDelay = retry_delay
) -> ShardStatus:
    """The status after an event of the node."""
    phase = _PHASES.get(event.state)
    if phase is None or event.generation != status.generation:
        return status
    if _is_over(status):
        return _told_late(status, phase, event)
    seen = _with_end(status, event)
    if phase is Phase.FAILED or (phase is Phase.STOPPED and status.phase is Phase.ENDING):
        of_leader = status.reason if status.phase is Phase.ENDING else ""
        return failed(seen, of_leader or event.error or "the node gave no reason", now, delay)
    if phase is Phase.STOPPED:
        return stopped(seen, now, delay)
    if phase is status.phase or not _goes_on(status.phase, phase):
        return replace(seen, port=event.port or seen.port)
    return replace(seen, phase=phase, since=now, reason="", port=event.port or seen.port, progress=None)


def _with_end(status: ShardStatus, event: pb.ShardEvent) -> ShardStatus:
    """What an event says of how a start ended."""
    said = tuple(line[:MAX_LINE] for line in event.last_output[-MAX_OUTPUT_LINES:])
    seen = replace(status, last_output=said or status.last_output)
    return replace(seen, exit_code=event.exit_code) if event.HasField("exit_code") else seen


def _told_late(status: ShardStatus, phase: Phase, event: pb.ShardEvent) -> ShardStatus:
    """How a shard ended that was missed already: the failure is counted, and now it has its reason.

    Of any other shard that has ended, nothing can come any more: a late or repeated event changes nothing.
    """
    if not status.unheard or phase not in {Phase.STOPPED, Phase.FAILED}:
        return status
    reason = event.error if phase is Phase.FAILED and event.error else status.reason
    return replace(_with_end(status, event), reason=reason, unheard=False)


def _is_over(status: ShardStatus) -> bool:
    return status.phase in {Phase.STOPPED, Phase.FAILED}


def _goes_on(before: Phase, after: Phase) -> bool:
    """Whether `after` follows `before`: a straggler may not turn time back."""
    order = (Phase.UNKNOWN, Phase.STARTING, Phase.RUNNING, Phase.DRAINING)
    return before in order and order.index(after) > order.index(before)


def on_progress(status: ShardStatus, progress: pb.ShardProgress) -> ShardStatus:
    """How far a start is. It is no change of phase, so the time since its begin goes on."""
    if progress.generation != status.generation or status.phase is not Phase.STARTING:
        return status
    return replace(status, progress=progress)


def adopted(status: ShardStatus, running: pb.RunningShard, now: float) -> ShardStatus:
    """The node says that it has this start of the shard."""
    phase = _PHASES.get(running.state, Phase.RUNNING)
    if phase is status.phase or status.phase is Phase.ENDING:
        return replace(status, port=running.port or status.port)
    if phase is Phase.DRAINING:
        # Since when is not known: it gets the whole time of a drain once more, rather than none.
        return replace(status, phase=phase, since=now, told=now, reason="", port=running.port)
    begun = now - max(0.0, running.age_seconds)
    return replace(status, phase=phase, since=begun, reason="", port=running.port)


def missing(status: ShardStatus, now: float, delay: RetryDelay = retry_delay) -> ShardStatus:
    """The node has registered, and does not have the shard."""
    if status.phase in AT_REST or status.phase in {Phase.DRAINING, Phase.ENDING}:
        return gone(status, now, delay)
    return replace(failed(status, "its node registered without it", now, delay), unheard=True)


def draining(status: ShardStatus, now: float) -> ShardStatus:
    """Its node was told to drain it."""
    return replace(status, phase=Phase.DRAINING, since=now, told=now)


def told_to_stop(status: ShardStatus, now: float) -> ShardStatus:
    """Its node was told to stop it."""
    return replace(status, told=now)
