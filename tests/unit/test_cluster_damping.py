"""Damping of a card's health: sick at once, unknown when it lasts, recoveries ever slower while it flaps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.damping import DampedHealth, DampingLimits, first, step
from controlplane.cluster.verdicts import Verdict
from controlplane.model.cards import Health

UP, DOWN = Verdict(Health.HEALTHY, "runs"), Verdict(Health.SICK, "stopped")
AWAY, SLOW = Verdict(Health.UNKNOWN, "away"), Verdict(Health.UNKNOWN, "slow")
LIMITS = DampingLimits(unknown=2, free=1, recovery_cap=8, calm=20)


def run(inputs: Iterable[Verdict], written: Verdict | None = None) -> list[DampedHealth]:
    """States after each input."""
    states: list[DampedHealth] = []
    for seen in inputs:
        states.append(step(states[-1], seen, LIMITS) if states else first(seen, written, written))
    return states


def shown(states: list[DampedHealth]) -> str:
    """One letter a cycle."""
    return "".join("HSU"[state.shown.health] for state in states)


def inputs(letters: str) -> list[Verdict]:
    return [{"H": UP, "S": DOWN, "U": AWAY, "u": SLOW}[letter] for letter in letters]


def test_sick_and_the_first_recovery_are_shown_at_once() -> None:
    assert shown(run(inputs("HHSSHHH"))) == "HHSSHHH"


def test_one_missed_reading_is_no_change_and_two_are() -> None:
    assert shown(run(inputs("HUHUUHUUUH"))) == "HHHHUHHUUH"


def test_each_further_recovery_must_last_twice_as_long() -> None:
    assert shown(run(inputs("SH" + "SHH" + "SHHHH" + "SHHHHHHHH" + "SHHHHHHHH"))) == (
        "SH" + "SSH" + "SSSSH" + "SSSSSSSSH" + "SSSSSSSSH"
    )


def test_an_operator_who_stops_a_card_twice_waits_for_nothing() -> None:
    states = [first(UP, None, None)]
    for seen in inputs("SHSHSH"):
        states.append(step(states[-1], seen))
    assert shown(states) == "HSHSHSS"
    assert [state.flapping for state in states] == [False] * 6 + [True]


def test_a_card_that_flaps_every_cycle_stays_sick() -> None:
    states = run(inputs("SH" * 50))
    assert shown(states)[2:] == "S" * 98
    assert states[-1].flapping


def test_a_calm_forgets_the_flapping() -> None:
    states = run(inputs("SHSHSH" + "H" * 20 + "SH"))
    assert shown(states)[-2:] == "SH"
    assert not states[-1].flapping


def test_unknown_between_does_not_hide_that_the_card_was_sick() -> None:
    assert shown(run(inputs("SHSUUHH"))) == "SHSSUUH"


def test_a_record_counts_as_what_was_shown_before() -> None:
    assert shown(run(inputs("UU"), written=DOWN)) == "SU"
    assert shown(run(inputs("H"), written=DOWN)) == "H"
    assert shown(run(inputs("U"), written=None)) == "U"


def test_another_reason_is_shown_when_it_lasts() -> None:
    states = run(inputs("UUuUuUuuu"))
    reasons = [state.shown.reason for state in states]
    assert reasons == ["away"] * 7 + ["slow"] * 2


LETTERS = st.text(alphabet="HSUu", max_size=120)


@given(LETTERS)
def test_what_is_shown_anew_was_seen_in_that_cycle(letters: str) -> None:
    states = run(inputs(letters))
    for before, after in pairwise(states):
        if after.shown != before.shown:
            assert after.shown == after.seen


@given(LETTERS)
def test_sick_is_shown_in_the_very_cycle_that_sees_it(letters: str) -> None:
    for state in run(inputs(letters)):
        assert state.seen.health is not Health.SICK or state.shown.health is Health.SICK


@given(LETTERS, st.sampled_from("HSU"))
def test_an_input_that_stays_is_shown_in_the_end(letters: str, last: str) -> None:
    states = run(inputs(letters + last * LIMITS.recovery_cap))
    assert shown(states)[-1] == last


@given(st.text(alphabet="HS", min_size=1, max_size=200))
def test_flapping_is_shown_ever_more_rarely(letters: str) -> None:
    """Between two calms, the recoveries that are shown take 1, 2, 4, … cycles each, up to the cap."""
    states = run(inputs(letters))
    recoveries = sum(a.shown is DOWN and b.shown is UP for a, b in pairwise(states))
    calms = sum(state.streak == LIMITS.calm for state in states)
    fast = 4  # 1, 2, 4 and 8 cycles
    assert recoveries <= (calms + 1) * fast + len(letters) / (LIMITS.recovery_cap + 1)
