"""Debouncing of one card, as properties over any history of reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.cards import Health
from controlplane.model.debounce import CardState, PollGate, PollLimits, Sighting, first_state, next_state

LIMITS = PollLimits(sick_polls=3, absent_polls=2)
IN_USE = CardState(present=True, enabled=True, healthy=True)
SICK = Sighting(True, True, Health.SICK)
HEALTHY = Sighting(True, True, Health.HEALTHY)
UNKNOWN = Sighting(True, True, Health.UNKNOWN)
ABSENT = Sighting(False, None)
DISABLED = Sighting(True, False, Health.HEALTHY)

sightings = st.builds(
    Sighting,
    st.sampled_from([True, False, None]),
    st.sampled_from([True, False, None]),
    st.sampled_from(Health),
    st.sampled_from(Health),
)


@dataclass(frozen=True)
class Read:
    seen: Sighting
    counts: bool


reads = st.lists(st.builds(Read, sightings, st.booleans()), max_size=30)


def run(history: list[Read], state: CardState = IN_USE) -> CardState:
    for read in history:
        state = next_state(state, read.seen, read.counts, LIMITS)
    return state


def test_sick_takes_effect_with_the_third_poll_in_a_row() -> None:
    polls = [Read(SICK, True)]
    assert run(polls * 2).reason == ""
    assert run(polls * 3).reason == "sick"


def test_absent_takes_effect_with_the_second_answered_poll_in_a_row() -> None:
    assert run([Read(ABSENT, True)]).reason == ""
    assert run([Read(ABSENT, True)] * 2).reason == "absent"


@pytest.mark.parametrize("between", [HEALTHY, UNKNOWN])
def test_a_row_of_sick_polls_is_broken_by_anything_else(between: Sighting) -> None:
    assert run([*[Read(SICK, True)] * 2, Read(between, True), *[Read(SICK, True)] * 2]).reason == ""


@given(reads)
def test_healthy_takes_effect_at_once_after_any_history(history: list[Read]) -> None:
    for counts in (True, False):
        assert run([*history, Read(HEALTHY, counts)]).reason == ""


@given(reads, sightings)
def test_an_early_read_never_takes_a_card_away(history: list[Read], seen: Sighting) -> None:
    before = run(history)
    after = next_state(before, seen, False, LIMITS)
    assert not after.reason or before.reason
    assert after.sick_polls <= before.sick_polls
    assert after.absent_polls <= before.absent_polls


@given(reads, sightings)
def test_one_poll_advances_each_count_by_one_at_most(history: list[Read], seen: Sighting) -> None:
    before = run(history)
    after = next_state(before, seen, True, LIMITS)
    assert after.sick_polls <= before.sick_polls + 1
    assert after.absent_polls <= before.absent_polls + 1


@given(reads, st.booleans(), st.sampled_from(Health))
def test_unknown_health_keeps_what_the_gateway_had(history: list[Read], counts: bool, last: Health) -> None:
    before = run(history)
    unknown = Sighting(True, None, Health.UNKNOWN, last)
    assert next_state(before, unknown, counts, LIMITS).healthy == before.healthy


@given(reads, st.booleans(), st.sampled_from(Health))
def test_a_record_that_cannot_be_read_changes_nothing(
    history: list[Read], counts: bool, last: Health
) -> None:
    before = run(history)
    assert next_state(before, Sighting(None, None, last, last), counts, LIMITS) == before


def test_a_card_that_comes_back_has_the_health_that_it_had() -> None:
    gone = run([Read(ABSENT, True)] * 2)
    assert run([Read(UNKNOWN, False)], gone).reason == ""
    sick_and_gone = run([*[Read(SICK, True)] * 3, *[Read(ABSENT, True)] * 2])
    assert run([Read(UNKNOWN, True)], sick_and_gone).reason == "sick"


def test_a_disabled_host_takes_its_card_out_with_the_next_poll() -> None:
    assert run([Read(DISABLED, False)]).reason == ""
    disabled = run([Read(DISABLED, True)])
    assert disabled.reason == "host disabled"
    assert run([Read(HEALTHY, False)], disabled).reason == ""


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (HEALTHY, ""),
        (SICK, "sick"),
        (ABSENT, "absent"),
        (DISABLED, "host disabled"),
        (UNKNOWN, ""),
        (replace(UNKNOWN, last_known=Health.SICK), "sick"),
        (replace(UNKNOWN, last_known=Health.HEALTHY), ""),
        (Sighting(None, None), "absent"),
    ],
)
def test_without_history_the_verdict_stands_as_it_is(seen: Sighting, reason: str) -> None:
    assert first_state(seen).reason == reason


@given(st.lists(st.tuples(st.floats(0, 1.5), st.booleans()), max_size=60))
def test_polls_count_at_most_once_an_interval(steps: list[tuple[float, bool]]) -> None:
    gate, now, counted = PollGate(1.0), 0.0, []
    for step, is_poll in steps:
        now += step
        if gate.counts(now, is_poll):
            assert is_poll
            counted.append(now)
    assert all(later >= earlier + 1.0 for earlier, later in pairwise(counted))


def test_polls_on_the_grid_of_the_interval_all_count() -> None:
    gate = PollGate(0.1)
    assert all(gate.counts(100 + number * 0.125, True) for number in range(20))
