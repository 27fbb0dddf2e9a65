"""The figure `faults`: a stall of healthy cards can't hide in it."""

from __future__ import annotations

import pytest

from bench.figures.faults import PROBES_PER_SECOND, Window, _no_stall, _report, latencies


def _window(longest_ms: float, p99: float = 600.0) -> Window:
    return Window(180.0, p99, longest_ms * 1e3, 0, 12.0, 0.8)


def test_one_probe_that_stalls_falls_short_although_no_p99_shows_it() -> None:
    calm, rough = [_window(8.0)] * 5, [_window(9.0)] * 4
    fine, stalled = (
        {claim.what: claim for claim in _report(calm, [*rough, window], [10] * 5, 5.0).claims}
        for window in (_window(30.0), _window(2000.0))
    )
    assert all(claim.holds for claim in fine.values())
    assert stalled["p99 with faults / undisturbed"].holds
    assert not stalled["longest probe with faults, ms"].holds


@pytest.mark.parametrize(("undisturbed", "limit"), [(2.0, 100.0), (80.0, 160.0), (3000.0, 250.0)])
def test_what_the_machine_does_by_itself_moves_the_limit_but_not_to_a_cards_timeout(
    undisturbed: float, limit: float
) -> None:
    assert _no_stall([_window(undisturbed)], [_window(1.0)]).limit == limit


def test_probes_that_were_due_during_a_stall_count_from_when_they_were_due() -> None:
    now, number = 100.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def probe() -> None:
        nonlocal now, number
        number += 1
        now += 2.0 if number == 1001 else 1e-4

    taken = latencies(probe, 5 * PROBES_PER_SECOND, lambda: now, sleep)
    assert len(taken) == 5 * PROBES_PER_SECOND
    assert max(taken) == pytest.approx(2e6)
    late = [each for each in taken if each > 1e4]
    assert len(late) > 0.4 * len(taken), "two of five seconds, and not one sample"
    assert taken[0] == pytest.approx(100.0)
    assert taken[-1] == pytest.approx(100.0), "made up for"
