"""Damping of one card's health: a pure state machine from what each cycle saw to what is shown.

Sick is shown at once, since it only ever comes from evidence. Unknown must last a few cycles, so that one
missed scrape is no change. The first recoveries are shown at once; each further attempt without a calm in
between must last twice as long, so that a flapping card stays out and its record stays still.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.cluster.verdicts import Verdict
from controlplane.model.cards import Health


@dataclass(frozen=True, slots=True)
class DampingLimits:
    """In cycles: how long unknown must last, the longest wait for a recovery, and what is calm.

    `free` is how many recoveries are shown at once: a card that an operator stops twice does not flap.
    """

    unknown: int = 2
    free: int = 2
    recovery_cap: int = 10
    calm: int = 30


DEFAULT_LIMITS = DampingLimits()


@dataclass(frozen=True, slots=True)
class DampedHealth:
    """`shown` is what counts; `known` the last shown that was not unknown.

    `streak` counts the cycles in a row that saw `seen`'s health, `same` those that saw its cause too;
    `attempts` counts how often the card was seen to recover since the last calm; `flapping` means that
    recoveries are held back.
    """

    shown: Verdict
    known: Verdict | None
    seen: Verdict
    streak: int = 1
    same: int = 1
    attempts: int = 0
    flapping: bool = False


def first(seen: Verdict, written: Verdict | None, known: Verdict | None) -> DampedHealth:
    """State of a card that this leader has not seen yet.

    `written` is what its record says, `known` the last of it that was not unknown.
    """
    start = written if written is not None else seen
    if known is None and start.health is not Health.UNKNOWN:
        known = start
    return step(DampedHealth(start, known, seen, streak=0, same=0), seen)


def step(state: DampedHealth, seen: Verdict, limits: DampingLimits = DEFAULT_LIMITS) -> DampedHealth:
    """State after one more cycle."""
    state = _count(state, seen, limits)
    if seen.health is state.shown.health:
        # Another reason for the same health is told when it lasts, so that two reasons can't take turns.
        settled = state.same >= limits.unknown and seen.kind != state.shown.kind
        return _show(state, seen) if settled else state
    return _show(state, seen) if state.streak >= _needed(state, seen.health, limits) else state


def _count(state: DampedHealth, seen: Verdict, limits: DampingLimits) -> DampedHealth:
    turned = seen.health is not state.seen.health
    streak = 1 if turned else state.streak + 1
    same = state.same + 1 if seen.kind == state.seen.kind and not turned else 1
    attempts = state.attempts + (turned and seen.health is Health.HEALTHY and _was_sick(state))
    attempts = 0 if streak >= limits.calm else attempts
    flapping = attempts > limits.free
    return replace(state, seen=seen, streak=streak, same=same, attempts=attempts, flapping=flapping)


def _needed(state: DampedHealth, health: Health, limits: DampingLimits) -> int:
    """Cycles in a row that a health must be seen before it is shown."""
    if health is Health.UNKNOWN:
        return limits.unknown
    if health is Health.HEALTHY and _was_sick(state):
        return int(min(limits.recovery_cap, 2 ** max(0, state.attempts - limits.free)))
    return 1


def _was_sick(state: DampedHealth) -> bool:
    return state.known is not None and state.known.health is Health.SICK


def _show(state: DampedHealth, verdict: Verdict) -> DampedHealth:
    known = state.known if verdict.health is Health.UNKNOWN else verdict
    return replace(state, shown=verdict, known=known)
