"""A shard's directory: what the agent wrote, what the holder wrote, and who is alive.

`spec.json` and `intent.json` have one writer, the agent; `state.json` has one writer, the holder, which locks
`holder.lock` for as long as it lives: its death is proven by the lock and not by a pid.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from controlplane.agent.files import (
    DocumentError,
    read_document,
    set_aside,
    write_document,
    write_set_aside,
)
from controlplane.agent.shards.output import last_lines
from controlplane.agent.shards.process import ProcessId, process_from_json
from controlplane.agent.shards.spec import ShardSpec, SpecError, spec_from_json

SPEC, STATE, INTENT, LOCK, LOG = "spec.json", "state.json", "intent.json", "holder.lock", "output.log"
HOLDER_ERRORS = "holder.err"
# A record of an end has 4 KiB of last output at most, and each byte of that can become six in JSON.
SET_ASIDE, SET_ASIDE_BYTES = "state.reserve", 32 << 10
TOKEN_VARIABLE = "AKV_SHARD_TOKEN"  # noqa: S105 - the name of a variable; the token marks a process, it opens nothing

DIRECTORY_VARIABLE = "AKV_SHARD_DIRECTORY"

HolderPhase = Literal["starting", "running", "stopping", "ended"]
Wish = Literal["run", "drain", "stop"]
_PHASES = {"starting", "running", "stopping", "ended"}


class RecordError(Exception):
    """A shard's record that can't be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How an engine ended. `code` is None after a signal and where the end was not seen."""

    code: int | None
    signal: str
    error: str
    last_output: str
    asked: bool
    at: float


@dataclass(frozen=True, slots=True)
class HolderState:
    """What the holder knows. Times are Unix seconds, for display only."""

    token: str
    phase: HolderPhase
    holder: ProcessId
    engine: ProcessId | None = None
    started: float = 0.0
    exit: Exit | None = None

    def to_json(self) -> dict[str, Any]:
        """The state as a record."""
        ended = self.exit
        return {
            "token": self.token,
            "phase": self.phase,
            "holder": self.holder.to_json(),
            "engine": self.engine.to_json() if self.engine else None,
            "started": self.started,
            "exit": {name: getattr(ended, name) for name in Exit.__slots__} if ended else None,
        }


def state_from_json(value: Mapping[str, Any]) -> HolderState:
    """Read what `to_json` wrote. Raises ValueError."""
    phase, token, ended, engine = (value.get(key) for key in ("phase", "token", "exit", "engine"))
    started = value.get("started")
    if phase not in _PHASES or not isinstance(token, str) or not isinstance(started, int | float):
        raise ValueError("no phase, token or start")
    return HolderState(
        token=token,
        phase=phase,
        holder=process_from_json(value.get("holder")),
        engine=process_from_json(engine) if engine is not None else None,
        started=float(started),
        exit=_exit_from_json(ended) if ended is not None else None,
    )


def _exit_from_json(value: Any) -> Exit:
    if not isinstance(value, dict) or not set(value) >= set(Exit.__slots__):
        raise ValueError("an end has not all of its fields")
    ended = Exit(**{name: value[name] for name in Exit.__slots__})
    texts = (ended.signal, ended.error, ended.last_output)
    if not all(isinstance(text, str) for text in texts) or not isinstance(ended.code, int | None):
        raise ValueError("an end has fields of a wrong type")
    return ended


@dataclass(frozen=True, slots=True)
class Intent:
    """What the agent wants of a shard and what it saw and told; it survives a restart of the agent.

    `drain_until` is Unix seconds, 0 when no drain was asked for, and `drain_seconds` the time that was given.
    `told`: the end was sent to a leader. `unresponsive`: why the agent gave the engine up, and ends it.
    """

    wish: Wish = "run"
    ready: bool = False
    told: bool = False
    drain_until: float = 0.0
    drain_seconds: float = 0.0
    unresponsive: str = ""

    def drain_left(self, now: float) -> float:
        """Seconds that are left of a drain, at `now`, Unix seconds: never more than were given, whatever the
        clock did meanwhile.
        """
        left = max(0.0, self.drain_until - now)
        return min(left, self.drain_seconds) if self.drain_seconds else left


class ShardDir:
    """One shard's directory. Errors of the file system pass through as OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """The current log file."""
        return self.path / LOG

    def holder_errors(self) -> str:
        """The end of what the holder itself complained of."""
        return "\n".join(last_lines(self.path / HOLDER_ERRORS, 5, 1000, files=1))

    def create(self, spec: ShardSpec, token: str) -> None:
        """Lay the records of a new life; the logs of an earlier one stay."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / STATE).unlink(missing_ok=True)
        (self.path / INTENT).unlink(missing_ok=True)
        set_aside(self.path / SET_ASIDE, SET_ASIDE_BYTES)
        write_document(self.path / SPEC, {"token": token, "spec": spec.to_json()})

    def is_unborn(self) -> bool:
        """Whether a start broke off before its order was on record: then nothing was launched."""
        written = [path for path in (self.path / SPEC, self.path / STATE) if os.path.lexists(path)]
        return not written and not self.holder_lives()

    def spec(self) -> tuple[ShardSpec, str]:
        """The order and its token. Raises RecordError."""
        try:
            document = read_document(self.path / SPEC)
            if document is None or not isinstance(document.get("token"), str):
                raise RecordError(f"{self.path / SPEC} is missing or has no token")
            return spec_from_json(document.get("spec") or {}), document["token"]
        except (DocumentError, SpecError) as error:
            raise RecordError(f"{self.path / SPEC}: {error}") from error

    def state(self) -> HolderState | None:
        """What the holder wrote last, None before it wrote anything. Raises RecordError."""
        try:
            document = read_document(self.path / STATE)
            return state_from_json(document) if document is not None else None
        except (DocumentError, ValueError, TypeError) as error:
            raise RecordError(f"{self.path / STATE}: {error}") from error

    def write_state(self, state: HolderState) -> None:
        """For the holder."""
        write_document(self.path / STATE, state.to_json())

    def write_end(self, state: HolderState) -> None:
        """For the holder on a full disk: how the engine ended, in the space that was set aside for that."""
        write_set_aside(self.path / STATE, self.path / SET_ASIDE, state.to_json())

    def intent(self) -> Intent:
        """What the agent wanted; what can't be read is the wish to run, which does nothing."""
        try:
            value = read_document(self.path / INTENT) or {}
        except DocumentError:
            return Intent()
        wish, until, given = value.get("wish"), value.get("drain_until"), value.get("drain_seconds")
        unresponsive = value.get("unresponsive")
        return Intent(
            wish=wish if wish in {"drain", "stop"} else "run",
            ready=value.get("ready") is True,
            told=value.get("told") is True,
            drain_until=float(until) if isinstance(until, int | float) else 0.0,
            drain_seconds=float(given) if isinstance(given, int | float) else 0.0,
            unresponsive=unresponsive if isinstance(unresponsive, str) else "",
        )

    def write_intent(self, intent: Intent) -> None:
        """For the agent."""
        write_document(self.path / INTENT, asdict(intent))

    def lock(self) -> int | None:
        """Take the holder's lock and return its descriptor; None when a holder lives."""
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def holder_lives(self) -> bool:
        """Whether a holder has the directory."""
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False
