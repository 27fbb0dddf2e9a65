"""Health verdicts: sick needs evidence about the card itself; what is unclear is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.evidence import Evidence, HostSample, PathLoss
from controlplane.cluster.health_plan import HealthInput, HealthPlan, plan_health
from controlplane.cluster.verdicts import LOSS, Verdict, judge, next_record
from controlplane.model.cards import CardPath, CardRecord, Health, HealthRecord

ADDRESS = "192.0.2.1"
CARD = CardRecord("storage-1", "xdp0", "L0P0", "nqn.2020-01.x:L0P0", "", (CardPath("tcp", ADDRESS, "4420"),))
UP, DOWN = HostSample({"L0P0": 1.0}), HostSample({"L0P0": 0.0})
AWAY, EMPTY = HostSample({}, "its exporter does not answer"), HostSample({})
ODD = HostSample({"L0P0": 0.5})
OTHER = HostSample({"L9P9": 0.0})
HOSTS = ("storage-2", "storage-3", "witness-1")


def write(
    previous: HealthRecord | None, sample: HostSample, now: float, warm: bool = False
) -> HealthRecord | None:
    return next_record(CARD, judge(CARD, sample), previous, now, warm)


def seen(
    lost_by: tuple[str, ...] = (), reached_by: tuple[str, ...] = (), alone: bool = False
) -> tuple[PathLoss, ...]:
    """What the hosts of both groups see of the card; each reaches its neighbour unless `alone`."""
    views = [PathLoss(host, CARD.host, ADDRESS, 100.0) for host in lost_by]
    views += [PathLoss(host, CARD.host, ADDRESS, 0.0) for host in reached_by]
    other = 100.0 if alone else 0.0
    return tuple(
        views + [PathLoss(host, "storage-9", "192.0.2.9", other) for host in (*lost_by, *reached_by)]
    )


class Term:
    """A leader's term over one card: the record as it is written, cycle by cycle."""

    def __init__(self, record: HealthRecord | None = None, pinging: tuple[str, ...] = HOSTS) -> None:
        self.record = record
        self.now = 0.0
        self.plan = HealthPlan((), ())
        self.writes = 0
        self._pinging = frozenset(pinging)

    def cycle(self, sample: HostSample, loss: tuple[PathLoss, ...] = (), warm: bool = False) -> Health | None:
        self.now += 1
        written = (self.record,) if self.record is not None else ()
        evidence = Evidence({CARD.host: sample}, loss)
        given_now = HealthInput((CARD,), written, evidence, self.now, warm, pinging=self._pinging)
        self.plan = plan_health(given_now, self.plan.state)
        if self.plan.put:
            self.record = self.plan.put[0]
            self.writes += 1
        return self.record.health_xdp if self.record is not None else None


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
    down = write(None, DOWN, 1)
    assert down is not None
    fresh = write(replace(down, xdp_serial="L7P7"), AWAY, 9)
    assert fresh is not None
    assert (fresh.xdp_serial, fresh.last_known) == ("L0P0", Health.UNKNOWN)


def test_health_of_a_gone_card_is_deleted_but_not_of_an_unreadable_one() -> None:
    record = write(None, UP, 1)
    assert record is not None
    gone = HealthInput((), (record,), Evidence(), 2)
    assert plan_health(gone, {}).gone == (("storage-1", "xdp0"),)
    assert plan_health(replace(gone, keep=frozenset({("storage-1", "xdp0")})), {}).gone == ()


def test_a_host_that_was_not_asked_keeps_its_health() -> None:
    assert plan_health(HealthInput((CARD,), (), Evidence(), 1), {}).put == ()


def test_two_hosts_that_lose_a_card_and_reach_others_make_it_sick_with_their_names() -> None:
    term = Term()
    assert term.cycle(UP) is Health.HEALTHY
    assert term.cycle(UP, seen(lost_by=("storage-2", "witness-1"))) is Health.SICK
    assert term.record is not None
    assert term.record.reason.startswith("packet loss: storage-2, witness-1 don't reach")
    assert term.cycle(UP, seen(reached_by=HOSTS)) is Health.HEALTHY


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (seen(lost_by=("storage-2",)), "one host alone"),
        (seen(lost_by=("storage-2", "storage-3"), reached_by=("witness-1",)), "witness-1 reaches it"),
        (seen(lost_by=("storage-2", "storage-3"), alone=True), "storage-2, storage-3 reach no other host"),
    ],
)
def test_weaker_loss_is_told_and_not_acted_on(loss: tuple[PathLoss, ...], words: str) -> None:
    term = Term()
    term.cycle(UP)
    assert term.cycle(UP, loss) is Health.HEALTHY
    assert words in term.plan.notes["L0P0"]
    term.cycle(UP)
    assert not term.plan.notes


def test_a_card_is_lost_only_when_all_its_paths_are() -> None:
    second = CardPath("tcp", "2001:db8::1", "4420")
    card = replace(CARD, paths=(*CARD.paths, second))
    lost = seen(lost_by=("storage-2", "storage-3"))
    for percent, health in ((None, Health.HEALTHY), (0.0, Health.HEALTHY), (100.0, Health.SICK)):
        others = tuple(
            PathLoss(host, CARD.host, second.traddr, percent)
            for host in ("storage-2", "storage-3")
            if percent is not None
        )
        given_now = HealthInput((card,), (), Evidence({CARD.host: UP}, lost + others), 1)
        assert plan_health(given_now, {}).put[0].health_xdp is health


def test_the_cards_own_host_and_pings_to_itself_do_not_count() -> None:
    own = (
        PathLoss(CARD.host, CARD.host, ADDRESS, 100.0),
        PathLoss("storage-2", CARD.host, ADDRESS, 100.0),
        PathLoss("storage-2", "storage-2", "192.0.2.2", 0.0),
        PathLoss(CARD.host, "storage-2", "192.0.2.2", 0.0),
    )
    assert Term().cycle(UP, own) is Health.HEALTHY


def test_hosts_that_are_split_into_halves_make_no_card_sick() -> None:
    halves = ({"a", "b"}, {"c", "d"})
    numbers = {name: f"192.0.2.{number}" for number, name in enumerate("abcd", start=1)}
    half = {name: members for members in halves for name in members}
    loss = tuple(
        PathLoss(one, other, numbers[other], 0.0 if other in half[one] else 100.0)
        for one in numbers
        for other in numbers
        if one != other
    )
    cards = tuple(
        CardRecord(name, "xdp0", f"S-{name}", "nqn.x", "", (CardPath("tcp", address, "4420"),))
        for name, address in numbers.items()
    )
    samples = {name: HostSample({f"S-{name}": 1.0}) for name in numbers}
    plan = plan_health(HealthInput(cards, (), Evidence(samples, loss), 1, pinging=frozenset(numbers)), {})
    assert {record.health_xdp for record in plan.put} == {Health.HEALTHY}
    assert len(plan.notes) == 4


def test_a_lost_card_is_not_healthy_again_because_nobody_looks_any_more() -> None:
    term = Term()
    lost = seen(lost_by=("storage-2", "storage-3"))
    assert term.cycle(UP, lost) is Health.SICK
    assert [term.cycle(UP) for _ in range(3)] == [Health.SICK, Health.UNKNOWN, Health.UNKNOWN]
    assert term.record is not None
    assert term.record.last_known is Health.SICK
    assert term.cycle(UP, seen(reached_by=("storage-2",))) is Health.HEALTHY


def test_a_new_leader_knows_from_the_record_that_a_card_was_lost() -> None:
    term = Term()
    term.cycle(UP, seen(lost_by=("storage-2", "storage-3")))
    following = Term(term.record)
    assert following.cycle(UP, warm=True) is Health.SICK
    assert following.cycle(UP, seen(reached_by=("storage-2",)), warm=True) is Health.HEALTHY


def test_a_new_leader_knows_from_an_unknown_record_that_the_card_was_lost_before() -> None:
    term = Term()
    for loss in (seen(lost_by=("storage-2", "storage-3")), (), ()):
        term.cycle(UP, loss)
    following = Term(term.record)
    assert [following.cycle(UP) for _ in range(3)] == [Health.UNKNOWN] * 3
    assert following.writes == 0
    assert following.cycle(UP, seen(reached_by=("storage-2",))) is Health.HEALTHY


def test_without_any_ping_exporter_the_storage_service_alone_decides() -> None:
    term = Term(pinging=())
    term.cycle(UP, seen(lost_by=("storage-2", "storage-3")))
    assert term.cycle(UP) is Health.HEALTHY


def test_a_host_that_is_silent_and_unreachable_is_sick() -> None:
    assert Term().cycle(AWAY, seen(lost_by=("storage-2", "storage-3"))) is Health.SICK


def test_the_reason_of_a_loss_stays_while_the_hosts_that_see_it_change() -> None:
    term = Term()
    term.cycle(UP, seen(lost_by=("storage-2", "storage-3")))
    for hosts in (HOSTS, HOSTS[:2], HOSTS[1:], HOSTS):
        term.cycle(UP, seen(lost_by=hosts))
    assert term.writes == 1


SAMPLES = st.sampled_from([UP, DOWN, AWAY, EMPTY, ODD, OTHER])
LOSSES = st.lists(
    st.builds(
        PathLoss,
        st.sampled_from((CARD.host, *HOSTS)),
        st.sampled_from((CARD.host, *HOSTS)),
        st.sampled_from((ADDRESS, "192.0.2.2", "192.0.2.3")),
        st.sampled_from((0.0, 24.9, 25.0, 49.9, 50.0, 100.0)),
    ),
    max_size=8,
).map(tuple)


def evidence_against(sample: HostSample, loss: tuple[PathLoss, ...]) -> bool:
    """Whether there is any: written down apart from the code under test."""
    if sample is DOWN:
        return True
    to_card = [
        view for view in loss if view.address == ADDRESS and view.source not in {CARD.host, view.destination}
    ]
    losing = {view.source for view in to_card if view.percent >= 50}
    return len(losing) >= 2


@given(st.lists(st.tuples(SAMPLES, LOSSES, st.booleans()), max_size=40))
def test_sick_is_written_only_on_evidence_of_that_very_cycle(
    history: list[tuple[HostSample, tuple[PathLoss, ...], bool]],
) -> None:
    term = Term()
    for sample, loss, warm in history:
        writes = term.writes
        health = term.cycle(sample, loss, warm)
        if term.writes > writes and health is Health.SICK:
            assert evidence_against(sample, loss)
            assert not warm


@given(st.lists(st.tuples(SAMPLES.filter(lambda sample: sample is not DOWN), st.booleans()), max_size=40))
def test_missing_data_never_make_a_card_sick(history: list[tuple[HostSample, bool]]) -> None:
    term = Term()
    for sample, warm in history:
        assert term.cycle(sample, (), warm) is not Health.SICK


@given(SAMPLES, st.booleans(), st.integers(1, 60))
def test_an_input_that_stays_is_written_at_most_once(sample: HostSample, warm: bool, cycles: int) -> None:
    term = Term()
    for _ in range(cycles):
        term.cycle(sample, (), warm)
    assert term.writes <= 1


def test_causes_are_not_confused_by_their_words() -> None:
    assert Verdict(Health.SICK, "a", LOSS).kind == Verdict(Health.SICK, "b", LOSS).kind
    assert Verdict(Health.SICK, "a").kind != Verdict(Health.SICK, "b").kind
