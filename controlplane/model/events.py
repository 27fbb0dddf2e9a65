"""Cluster events: what the leader and the hosts decided, as an operator reads it later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

EventKind = Literal["leader", "health", "membership", "host", "card", "alarm"]
KINDS: tuple[EventKind, ...] = get_args(EventKind)
# How many are kept; the oldest leave.
EVENTS_KEPT = 256
MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to tell. `subject` is a card's serial or a host's name; `time` is Unix seconds."""

    kind: EventKind
    subject: str
    text: str
    time: float


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """A note with its number, which counts over the whole cluster, and the host that made it."""

    number: int
    host: str
    note: Note


class Repeats:
    """Tells news from what was said before: the same text about the same thing is no event again."""

    def __init__(self) -> None:
        self._last: dict[tuple[EventKind, str], str] = {}

    def is_news(self, note: Note) -> bool:
        """Whether the note differs from the last one of its kind about its subject."""
        key = (note.kind, note.subject)
        if self._last.get(key) == note.text:
            return False
        self._last.pop(key, None)
        self._last[key] = note.text
        if len(self._last) > EVENTS_KEPT:
            del self._last[next(iter(self._last))]
        return True
