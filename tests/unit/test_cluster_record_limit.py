"""Records that strangers cause: once a minute for each of them, and bounded however many there are."""

from __future__ import annotations

from controlplane.cluster.record_limit import KEPT, SECONDS, RecordLimit, repeated
from tests.support.manual_clock import ManualClock


def test_one_record_a_minute_says_how_many_it_stands_for() -> None:
    clock = ManualClock()
    limit = RecordLimit(clock)
    assert [limit.admit("a") for _ in range(5)] == [0, None, None, None, None]
    assert limit.admit("b") == 0, "another's record is not held back"
    clock.now += SECONDS - 0.1
    assert limit.admit("a") is None
    clock.now += 0.1
    assert [limit.admit("a"), limit.admit("a")] == [5, None]
    clock.now += SECONDS
    assert limit.admit("a") == 1
    assert repeated(0) == {}
    assert repeated(5) == {"repeated": 5}


def test_however_many_names_come_the_records_and_the_memory_are_bounded() -> None:
    clock = ManualClock()
    limit = RecordLimit(clock)
    admitted = sum(limit.admit(("stranger", number)) is not None for number in range(10_000))
    assert admitted == KEPT + 1
    assert len(limit._last) == KEPT + 1
    clock.now += SECONDS
    assert limit.admit("someone new") == 0, "those of the minute before have made room"
    assert limit.admit(("stranger", 3)) == 0
    assert len(limit._last) <= KEPT + 1
