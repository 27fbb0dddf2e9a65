"""What is seen of members: who answers as itself, strikes, and the learners' time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from akv.etcd import etcd_pb2 as pb

from controlplane.cluster.observe import (
    EvenWatch,
    LearnerWatch,
    Strikes,
    observe,
    quorum_view,
    status_of,
)
from controlplane.cluster.quorum import JoinRequest, MemberView
from controlplane.model.cards import ClusterSnapshot, HostRecord
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.joins import JoinRecord
from controlplane.store.membership import Member


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


@pytest.mark.parametrize(
    ("answers", "caught_up", "overdue"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
def test_a_learner_is_ready_when_it_answers_and_has_caught_up(
    answers: bool, caught_up: bool, overdue: bool
) -> None:
    clock = Clock()
    watch = LearnerWatch(10.0, clock)
    learner = replace(member(1), answers=answers, caught_up=caught_up)
    watch.judge((learner,))
    clock.now += 10.0
    (judged,) = watch.judge((learner,))
    assert judged.overdue is overdue
    assert replace(judged, overdue=False) == learner


def test_a_learner_whose_place_was_given_anew_has_its_time_anew() -> None:
    clock = Clock()
    watch = LearnerWatch(10.0, clock)
    watch.judge((member(1),))
    watch.judge(())
    clock.now += 10.0
    assert not watch.judge((member(1),))[0].overdue


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
    clock.now += 0.1
    assert not watch.judge([*two, member(3)]), "it was odd meanwhile; a learner does not count"
    clock.now += 10.0
    assert watch.judge(two)


class Members:
    """Stands for etcd's client: the status that each endpoint gives, or that none comes from there."""

    def __init__(self, **answers: pb.StatusResponse | StoreError) -> None:
        self.answers = answers

    async def ask(self, endpoint: str, *_: Any) -> pb.StatusResponse:
        answer = self.answers[endpoint.partition(":")[0]]  # KeyError: no endpoint of the client's
        if isinstance(answer, StoreError):
            raise answer
        return answer


def status(number: int, *, leader: int = 1, applied: int = 100, raft: int = 100) -> pb.StatusResponse:
    header = pb.ResponseHeader(member_id=number, cluster_id=9)
    return pb.StatusResponse(header=header, leader=leader, raft_index=raft, raft_applied_index=applied)


def listed(number: int, *, learner: bool = False, urls: tuple[str, ...] = ()) -> Member:
    clients = urls or (f"h{number}:2379",)
    return Member(number, f"h{number}", (f"http://h{number}:2380", "http://second:2380"), clients, learner)


async def look(
    strikes: Strikes | None = None, /, **answers: pb.StatusResponse | StoreError
) -> dict[str, MemberView]:
    members: Any = Members(**answers)
    views = await observe(members, [listed(1), listed(2), listed(3, learner=True)], strikes)
    return {view.name: view for view in views}


@pytest.mark.parametrize(
    "answer",
    [
        StoreUnavailable("silent"),
        status(7),  # another server at its address
        status(2, leader=0),  # cut off from the quorum
    ],
    ids=["silent", "another", "no leader"],
)
async def test_who_does_not_answer_as_itself_with_a_leader_is_silent(answer: Any) -> None:
    strikes = Strikes()
    for expected in (1, 2):
        views = await look(strikes, h1=status(1), h2=answer, h3=status(3))
        assert [views[name].answers for name in ("h1", "h2", "h3")] == [True, False, True]
        assert [views[name].strikes for name in ("h1", "h2", "h3")] == [0, expected, 0]
        assert not views["h2"].caught_up
    assert (await look(strikes, h1=status(1), h2=status(2), h3=status(3)))["h2"].strikes == 0


async def test_nothing_is_held_against_anyone_while_no_strikes_are_counted() -> None:
    views = await look(None, h1=status(1), h2=StoreUnavailable("silent"), h3=status(3))
    assert [view.strikes for view in views.values()] == [0, 0, 0]
    assert not views["h2"].answers


@pytest.mark.parametrize(("applied", "caught_up"), [(90, True), (89, False), (0, False), (100, True)])
async def test_a_learner_has_caught_up_when_it_has_applied_nine_tenths_of_the_newest(
    applied: int, caught_up: bool
) -> None:
    """What it has received and not applied does not count, nor what a member behind it has; what the others
    have received does.
    """
    first, second = status(1, applied=10, raft=100), status(2, applied=5, raft=10)
    views = await look(h1=first, h2=second, h3=status(3, applied=applied, raft=100))
    assert views["h3"].caught_up is caught_up


async def test_a_member_is_seen_as_etcd_lists_it() -> None:
    views = await look(h1=status(1), h2=status(2), h3=status(3))
    third = views["h3"]
    assert (third.member_id, third.peer_url, third.learner) == (3, "http://h3:2380", True)
    assert not views["h1"].learner
    assert len(await observe(Members(), [])) == 0  # type: ignore[arg-type]


async def test_a_member_is_asked_at_its_first_address_only_and_one_without_any_is_silent() -> None:
    members: Any = Members(h1=status(1), h2=status(2))
    assert await status_of(members, Member(4, "", ("http://h4:2380",), (), True)) is None
    assert await status_of(members, listed(1, urls=("gone:2379", "h1:2379"))) is None, "it is no endpoint"
    found = await status_of(members, listed(1, urls=("h1:2379", "gone:2379")))
    assert found is not None
    assert found.member_id == 1
    nameless = (await observe(members, [Member(5, "", (), (), True)]))[0]
    assert (nameless.peer_url, nameless.answers, nameless.started) == ("", False, False)


def test_the_planner_gets_who_is_in_who_waits_and_who_is_where() -> None:
    hosts = (
        HostRecord("h1", True, False, {"etcd_peer": "http://h1:2380"}),
        HostRecord("h2", False, False, {"etcd_peer": "http://h2:2380"}),
        HostRecord("h3", True, True, {}),  # its address was given to another
    )
    picture = ClusterSnapshot(7, None, (), hosts, (), ())
    nameless = replace(member(3), peer_url="", name="")
    view = quorum_view(picture, (member(1), nameless), [JoinRecord("h4", "http://h4:2380", 77)], 5)
    assert view.enabled_hosts == {"h1", "h3"}
    assert view.hosts_by_peer_url == {"http://h1:2380": "h1", "http://h2:2380": "h2"}
    assert view.host_of(nameless) == "", "a host without an address is nobody's"
    assert view.members == (member(1), nameless)
    assert view.joins == (JoinRequest("h4", "http://h4:2380", 77),)
    assert view.strikes_limit == 5
