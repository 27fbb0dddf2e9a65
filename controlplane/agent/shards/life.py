"""The life of a shard, told from its records alone: no clock, no process is looked at here."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from controlplane.agent.shards.record import Exit, HolderState, Intent


class Phase(enum.Enum):
    """Where a shard is; STOPPED and FAILED are ends."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self in {Phase.STOPPED, Phase.FAILED}


@dataclass(frozen=True, slots=True)
class Status:
    """What is told of a shard. `exit_code` is 128 + signal after a signal, None where none was seen."""

    phase: Phase
    error: str = ""
    exit_code: int | None = None
    last_output: str = ""


def judge(state: HolderState | None, holder_lives: bool, intent: Intent) -> Status:
    """The status of a shard that was launched, from its holder's record and the agent's own."""
    if state is not None and state.exit is not None:
        return _ended(state.exit, intent)
    if not holder_lives:
        return _without_holder(state, intent)
    if intent.wish in {"drain", "stop"}:
        return Status(Phase.DRAINING)
    return Status(Phase.RUNNING if intent.ready else Phase.STARTING)


def _given_up(intent: Intent) -> bool:
    """Whether the agent ended it for its silence, and not because it was asked to."""
    return bool(intent.unresponsive) and intent.wish == "run"


def _without_holder(state: HolderState | None, intent: Intent) -> Status:
    """The holder ended without a word, and its engine with it."""
    if _given_up(intent):
        return Status(Phase.FAILED, intent.unresponsive)
    if intent.wish == "stop":
        return Status(Phase.STOPPED)
    if state is None:
        return Status(Phase.FAILED, "its holder ended before it started the engine")
    return Status(Phase.FAILED, "its holder was killed, or the machine restarted; how it ended is not known")


def _ended(ended: Exit, intent: Intent) -> Status:
    code = 128 + _number(ended.signal) if ended.signal else ended.code
    if _given_up(intent):
        return Status(Phase.FAILED, intent.unresponsive, code, ended.last_output)
    asked = ended.asked or intent.wish == "stop" or (intent.wish == "drain" and not ended.error)
    if asked:
        return Status(Phase.STOPPED, "", code, ended.last_output)
    if ended.error:
        reason = ended.error
    elif ended.signal:
        reason = f"ended by {ended.signal}"
    else:
        reason = f"ended by itself with exit code {ended.code}"
    return Status(Phase.FAILED, reason, code, ended.last_output)


def _number(name: str) -> int:
    """The number of a signal by its name; real-time signals have none and are told by their number."""
    try:
        return signal.Signals[name].value
    except KeyError:
        return int(name.rpartition(" ")[2])
