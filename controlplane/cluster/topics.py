"""What is wrong at the moment, told once when it begins and once when it is over: a pure state machine.

A topic is over when it was absent for several cycles in a row, so that one that comes and goes is told once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# What is said and about whom.
Topic = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TopicNews:
    """Topics that began, with their reasons, and topics that are over."""

    begun: Mapping[Topic, str]
    over: tuple[Topic, ...]


class Topics:
    """Remembers what was told. `quiet` is how many cycles in a row without a topic end it."""

    def __init__(self, quiet: int = 5) -> None:
        self._quiet = quiet
        self._absent: dict[Topic, int] = {}

    def update(self, present: Mapping[Topic, str], *, blind: bool = False) -> TopicNews:
        """Take what is wrong in this cycle, with reasons; a `blind` cycle saw too little to end anything."""
        begun = {topic: reason for topic, reason in present.items() if topic not in self._absent}
        absent = {
            topic: 0 if topic in present else count + (not blind) for topic, count in self._absent.items()
        }
        over = tuple(topic for topic, count in absent.items() if count >= self._quiet)
        self._absent = {topic: count for topic, count in absent.items() if topic not in over}
        self._absent |= dict.fromkeys(begun, 0)
        return TopicNews(begun, over)
