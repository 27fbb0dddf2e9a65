"""Backoff and deadlines."""

import asyncio

import pytest

from controlplane.base.backoff import Backoff, Deadline, Tries


def test_doubles_to_the_cap_and_starts_over() -> None:
    backoff = Backoff(0.1, 1.0, uniform=lambda: 0.0)
    assert [round(backoff.next(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1)


def test_jitter_takes_off_up_to_a_half() -> None:
    assert Backoff(1.0, 8.0, uniform=lambda: 0.999999).next() == pytest.approx(0.5, abs=1e-3)
    assert Backoff(1.0, 8.0, uniform=lambda: 0.5).next() == pytest.approx(0.75)


@pytest.mark.parametrize(("first", "cap", "factor"), [(0.0, 1.0, 2.0), (2.0, 1.0, 2.0), (1.0, 2.0, 0.5)])
def test_nonsense_is_refused(first: float, cap: float, factor: float) -> None:
    with pytest.raises(ValueError, match="backoff needs"):
        Backoff(first, cap, factor=factor)


def test_deadline_counts_down_and_stops_at_zero() -> None:
    now = [10.0]
    deadline = Deadline(2.0, lambda: now[0])
    now[0] = 11.5
    assert deadline.remaining() == pytest.approx(0.5)
    assert not deadline.expired
    now[0] = 99.0
    assert deadline.remaining() == 0.0
    assert deadline.expired


async def test_tries_pause_between_each_other_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert [number async for number in Tries(5, 0.1, 0.3, uniform=lambda: 0.0)] == [0, 1, 2, 3, 4]
    assert pauses == pytest.approx([0.1, 0.2, 0.3, 0.3])
    assert [number async for number in Tries(1, 0.1, 0.3)] == [0]
    assert len(pauses) == 4
