"""Judges of requests: each is fed what the replay reports and knows what a promise allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from controlplane.apps.demo.requests import Placement, Served


class Watch(Protocol):
    """Is fed every request from its start on."""

    def feed(self, served: Served) -> None:
        """Take one request."""


@dataclass
class Troubles:
    """What must not happen, whatever the promise: a wrong block, or an error that reaches the client."""

    wrong: int = 0
    errors: int = 0

    def feed(self, served: Served) -> None:
        """Take one request."""
        self.wrong += served.wrong
        self.errors += served.errors

    @property
    def none(self) -> bool:
        """Nothing of the kind happened."""
        return self.wrong == 0 and self.errors == 0


@dataclass
class Coverage:
    """Tells when each of the first `rows` rows was replayed at least once from `since` on."""

    rows: int
    since: float
    seen: set[int] = field(default_factory=set)

    def feed(self, served: Served) -> None:
        """Take one request."""
        if served.began >= self.since:
            self.seen.add(served.index)

    @property
    def complete(self) -> bool:
        """Every row came."""
        return len(self.seen) >= self.rows


@dataclass
class Prediction:
    """The undisturbed first pass against the simulation, request by request."""

    requests: int = 0
    blocks: int = 0
    matched: int = 0
    expected: int = 0
    different: int = 0
    dialogs: set[int] = field(default_factory=set)

    def feed(self, served: Served) -> None:
        """Take one request."""
        if served.number != 1:
            return
        self.requests += 1
        self.blocks += served.blocks
        self.matched += served.matched
        self.expected += served.expected
        self.different += served.matched != served.expected or served.got != served.matched
        self.dialogs.add(served.dialog)

    @property
    def measured_ratio(self) -> float:
        """Blocks found of all blocks."""
        return self.matched / max(self.blocks, 1)

    @property
    def expected_ratio(self) -> float:
        """Blocks that unlimited cards would find, of all blocks."""
        return self.expected / max(self.blocks, 1)


@dataclass
class AllFull:
    """From `since` on every request hits in full."""

    since: float
    requests: int = 0
    short: list[Served] = field(default_factory=list)

    def feed(self, served: Served) -> None:
        """Take one request."""
        if served.began >= self.since:
            self.requests += 1
            if not served.full:
                self.short.append(served)


@dataclass
class Shift:
    """Dialogs that change their card miss once; the others hit in full all the while.

    The change begins at `since`. A moving dialog's requests may meet the old card, in full, until they meet
    the new one, which has nothing of it; one that is caught by the change finds the old card's blocks and
    can't read them. Where the old card was gone for certain at `gone`, nothing of it can be found from then
    on. Anything else is `impossible`.
    """

    before: Placement
    after: Placement
    since: float
    gone: float | None = None
    kept: int = 0
    short: list[Served] = field(default_factory=list)
    missed: set[int] = field(default_factory=set)
    impossible: list[Served] = field(default_factory=list)

    def feed(self, served: Served) -> None:
        """Take one request."""
        if served.ended < self.since:
            return
        if self.before.serial(served.dialog) == self.after.serial(served.dialog):
            self._stays(served)
        elif served.dialog not in self.missed:
            self._moves(served)

    def _stays(self, served: Served) -> None:
        self.kept += 1
        if not served.full:
            self.short.append(served)

    def _moves(self, served: Served) -> None:
        if served.missed:
            self.missed.add(served.dialog)
        elif self.gone is None or served.began < self.gone:
            self._meets_the_change(served)
        else:
            self.impossible.append(served)

    def _meets_the_change(self, served: Served) -> None:
        # What it could not read it stores anew, on the new card: for its dialog this was the miss.
        if not served.full and (self.gone is not None or served.matched == served.blocks):
            self.missed.add(served.dialog)
        elif not served.full:
            self.impossible.append(served)


@dataclass
class Homecoming:
    """From `since` on the dialogs of a card that came back are found there, with nothing to store."""

    placement: Placement
    serial: str
    since: float
    found: set[int] = field(default_factory=set)
    short: list[Served] = field(default_factory=list)

    def feed(self, served: Served) -> None:
        """Take one request."""
        if served.began < self.since or self.placement.serial(served.dialog) != self.serial:
            return
        if served.full:
            self.found.add(served.dialog)
        else:
            self.short.append(served)


@dataclass
class Transfers:
    """Counts the blocks that a replay moved."""

    read: int = 0
    stored: int = 0

    def feed(self, served: Served) -> None:
        """Take one request."""
        self.read += served.got
        self.stored += served.put_ok
