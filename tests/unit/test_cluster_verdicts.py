"""Health verdicts: sick needs evidence about the card itself; what is unclear is unknown."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.verdicts import HostSample, judge, next_record, plan_health
from controlplane.model.cards import CardRecord, Health, HealthRecord

CARD = CardRecord("storage-1", "xdp0", "L0P0", "nqn.2020-01.x:L0P0", "", ())
UP, DOWN = HostSample({"L0P0": 1.0}), HostSample({"L0P0": 0.0})
AWAY, EMPTY = HostSample({}, "its exporter does not answer"), HostSample({})
ODD = HostSample({"L0P0": 0.5})
OTHER = HostSample({"L9P9": 0.0})


def write(
    previous: HealthRecord | None, sample: HostSample, now: float, warm: bool = False
) -> HealthRecord | None:
    return next_record(CARD, judge(CARD, sample), previous, now, warm)


def test_verdicts() -> None:
    assert judge(CARD, UP).health is Health.HEALTHY
    assert judge(CARD, DOWN).health is Health.SICK
    for unclear in (AWAY, EMPTY, ODD, OTHER):
        assert judge(CARD, unclear).health is Health.UNKNOWN


def test_since_moves_with_the_health_only_and_last_known_survives_unknown() -> None:
    healthy = write(None, UP, 10)
    assert healthy is not None
    assert write(healthy, UP, 20) is None
    unknown = write(healthy, AWAY, 30)
    assert unknown is not None
    assert (unknown.health_xdp, unknown.last_known, unknown.since) == (Health.UNKNOWN, Health.HEALTHY, 30)
    still = write(unknown, EMPTY, 40)
    assert still is not None
    assert (still.since, still.reason != unknown.reason) == (30, True)
    sick = write(still, DOWN, 50)
    assert sick is not None
    assert (sick.health_xdp, sick.last_known, sick.since) == (Health.SICK, Health.SICK, 50)


def test_warm_up_writes_healthy_only() -> None:
    assert write(None, DOWN, 1, warm=True) is None
    assert write(None, AWAY, 1, warm=True) is None
    assert write(None, UP, 1, warm=True) is not None


def test_a_record_of_another_serial_has_no_say() -> None:
    old = replace(write(None, DOWN, 1) or HealthRecord(*[None] * 7), xdp_serial="L7P7")  # type: ignore[list-item]
    fresh = write(old, AWAY, 9)
    assert fresh is not None
    assert (fresh.xdp_serial, fresh.last_known) == ("L0P0", Health.UNKNOWN)


def test_health_of_a_gone_card_is_deleted_but_not_of_an_unreadable_one() -> None:
    record = write(None, UP, 1)
    assert record is not None
    assert plan_health([], [record], {}, 2, False).gone == (("storage-1", "xdp0"),)
    assert plan_health([], [record], {}, 2, False, frozenset({("storage-1", "xdp0")})).gone == ()


def test_a_host_that_was_not_asked_keeps_its_health() -> None:
    assert plan_health([CARD], [], {}, 1, False).put == ()


SAMPLES = st.sampled_from([UP, DOWN, AWAY, EMPTY, ODD, OTHER])


@given(st.lists(st.tuples(SAMPLES, st.booleans()), max_size=30))
def test_sick_is_written_only_on_a_zero_of_the_card_itself(history: list[tuple[HostSample, bool]]) -> None:
    record: HealthRecord | None = None
    for now, (sample, warm) in enumerate(history):
        changed = write(record, sample, now, warm)
        if changed is not None and changed.health_xdp is Health.SICK:
            assert sample is DOWN
            assert not warm
        record = changed or record
