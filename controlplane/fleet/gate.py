"""Which messages of a node are heard: an older incarnation, a duplicate and a straggler are not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What a message is."""

    ADMITTED = "admitted"
    DUPLICATE = "duplicate"
    STALE = "stale incarnation"


@dataclass(slots=True)
class Gate:
    """The newest incarnation of one node, and the last message number heard of it."""

    incarnation: int = 0
    sequence: int = 0

    def register(self, incarnation: int, sequence: int, *, dead: bool = False) -> Verdict:
        """Class a Register, and take it if admitted.

        `dead` says that nothing was heard of the newer incarnation for so long that it counts as gone: then
        an older one may come back, as an agent whose state was lost.
        """
        if incarnation < self.incarnation and not dead:
            return Verdict.STALE
        if incarnation == self.incarnation and sequence <= self.sequence:
            return Verdict.DUPLICATE
        self.incarnation, self.sequence = incarnation, sequence
        return Verdict.ADMITTED

    def message(self, incarnation: int, sequence: int) -> Verdict:
        """Class any other message, which came on a stream of that incarnation, and take it if admitted."""
        if incarnation != self.incarnation:
            return Verdict.STALE
        if sequence <= self.sequence:
            return Verdict.DUPLICATE
        self.sequence = sequence
        return Verdict.ADMITTED
