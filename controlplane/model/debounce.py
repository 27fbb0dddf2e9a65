"""Debouncing of one card's presence and health, as a pure function of what a read saw.

A read can make "healthy" and "joined" effective at once. Only a counting poll (at most one an interval)
brings "sick" and "absent" nearer, and unknown keeps what the gateway had.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.model.cards import Health


@dataclass(frozen=True, slots=True)
class PollLimits:
    """Polls in a row before a verdict counts, and the poll interval in seconds."""

    sick_polls: int = 3
    absent_polls: int = 3
    interval: float = 1.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one read says of one card.

    `present` and `enabled` are None where the record can't be read. `health` and `last_known` are the
    leader's verdict for exactly this card; UNKNOWN where there is none.
    """

    present: bool | None
    enabled: bool | None = True
    health: Health = Health.UNKNOWN
    last_known: Health = Health.UNKNOWN


@dataclass(frozen=True, slots=True)
class CardState:
    """What the gateway holds true of one card, and how far the counts towards the opposite are."""

    present: bool
    enabled: bool
    healthy: bool
    sick_polls: int = 0
    absent_polls: int = 0

    @property
    def reason(self) -> str:
        """Why the card is not used; empty when it is."""
        if not self.enabled:
            return "host disabled"
        if not self.present:
            return "absent"
        return "" if self.healthy else "sick"


class PollGate:
    """Lets the counts advance at most once in a poll interval, whatever triggers the reads."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last: float | None = None

    def counts(self, now: float, is_poll: bool) -> bool:
        """Whether the read that began at `now` (monotonic seconds) counts."""
        if not is_poll or (self._last is not None and now < self._last + self._interval):
            return False
        self._last = now
        return True


def first_state(seen: Sighting) -> CardState:
    """State of a card without history: the verdict as it stands.

    Unknown takes what was known last; where nothing was, the card is usable, since the initiator only serves
    a card that identifies with its serial.
    """
    verdict = seen.last_known if seen.health is Health.UNKNOWN else seen.health
    return CardState(
        present=bool(seen.present), enabled=seen.enabled is not False, healthy=verdict is not Health.SICK
    )


def next_state(state: CardState, seen: Sighting, counts: bool, limits: PollLimits) -> CardState:
    """State after one answered read; `counts` as PollGate says."""
    return _health(_enabled(_presence(state, seen, counts, limits), seen, counts), seen, counts, limits)


def _presence(state: CardState, seen: Sighting, counts: bool, limits: PollLimits) -> CardState:
    if seen.present is None:
        return state
    if seen.present:
        return replace(state, present=True, absent_polls=0)
    polls = min(state.absent_polls + counts, limits.absent_polls)
    return replace(state, present=state.present and polls < limits.absent_polls, absent_polls=polls)


def _enabled(state: CardState, seen: Sighting, counts: bool) -> CardState:
    """An administrator's word needs no second poll, but only a poll takes a card away."""
    if seen.enabled is None or (not seen.enabled and not counts):
        return state
    return replace(state, enabled=seen.enabled)


def _health(state: CardState, seen: Sighting, counts: bool, limits: PollLimits) -> CardState:
    if not seen.present:
        return state
    if seen.health is Health.HEALTHY:
        return replace(state, healthy=True, sick_polls=0)
    if seen.health is Health.UNKNOWN:
        return replace(state, sick_polls=0)
    polls = min(state.sick_polls + counts, limits.sick_polls)
    return replace(state, healthy=state.healthy and polls < limits.sick_polls, sick_polls=polls)
