"""Strikes and the learners' time, counted from observations with a clock of the test's own."""

from __future__ import annotations

from controlplane.cluster.observe import EvenWatch, LearnerWatch, Strikes
from controlplane.cluster.quorum import MemberView


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def member(number: int, *, learner: bool = True, ready: bool = False) -> MemberView:
    return MemberView(number, f"h{number}", f"http://h{number}:2380", learner, ready, ready)


def test_strikes_are_counted_in_a_row_and_forgotten_with_the_member() -> None:
    strikes = Strikes()
    for answers in ({1: False, 2: False}, {1: False, 2: True}, {1: False, 2: False}):
        strikes.note(answers)
    assert (strikes.of(1), strikes.of(2)) == (3, 1)
    strikes.note({2: False})
    assert (strikes.of(1), strikes.of(2)) == (0, 2)


def test_a_learner_is_overdue_after_its_time_without_a_break() -> None:
    clock = Clock()
    watch = LearnerWatch(10.0, clock)
    late = [m.member_id for m in watch.judge((member(1), member(2))) if m.overdue]
    assert late == []
    clock.now += 9.9
    assert not any(m.overdue for m in watch.judge((member(1), member(2, ready=True))))
    clock.now += 0.1
    assert [m.member_id for m in watch.judge((member(1), member(2))) if m.overdue] == [1]
    clock.now += 9.9
    assert [m.member_id for m in watch.judge((member(1), member(2))) if m.overdue] == [1]
    clock.now += 0.1
    assert [m.member_id for m in watch.judge((member(1), member(2))) if m.overdue] == [1, 2]


def test_voters_are_never_overdue() -> None:
    clock = Clock()
    watch = LearnerWatch(10.0, clock)
    watch.judge((member(1, learner=False),))
    clock.now += 100
    assert not watch.judge((member(1, learner=False),))[0].overdue


def test_an_even_number_of_voters_is_told_after_its_time_without_a_break() -> None:
    clock = Clock()
    watch = EvenWatch(10.0, clock)
    two, three = [member(n, learner=False) for n in (1, 2)], [member(n, learner=False) for n in (1, 2, 3)]
    assert not watch.judge(two)
    clock.now += 9.9
    assert not watch.judge(two)
    assert not watch.judge(three)
    assert not watch.judge([*two, member(3)])
    clock.now += 10.0
    assert watch.judge(two)
