"""The membership planner against a model of etcd: it converges, keeps voters odd, never costs the quorum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cluster.quorum import (
    AddLearner,
    Hold,
    JoinRequest,
    MemberView,
    Promote,
    QuorumView,
    Remove,
    Step,
    finished_joins,
    plan_step,
    tolerated_failures,
)

ACTS = ["disable", "join", "silence", "revive", "wait", "even", "step", "step"]
HOSTS = tuple(f"host-{number}" for number in range(1, 8))


def url(host: str) -> str:
    return f"http://{host}:2380"


@dataclass
class FakeEtcd:
    """etcd's membership rules, as measured: what an action does, and what would lose the quorum."""

    enabled: set[str]
    joins: list[JoinRequest]
    members: list[MemberView]
    max_learners: int = 1
    next_id: int = 100
    silent: set[str] = field(default_factory=set)
    ran: set[int] = field(default_factory=set)
    late: bool = False
    even_for_long: bool = False

    def view(self) -> QuorumView:
        return QuorumView(
            members=tuple(self._seen(member) for member in self.members),
            hosts_by_peer_url={url(host): host for host in HOSTS},
            enabled_hosts=frozenset(self.enabled),
            joins=tuple(self.joins),
            max_learners=self.max_learners,
            leader_host=self._leader(),
            even_for_long=self.even_for_long and self.voters() % 2 == 0,
        )

    def _leader(self) -> str:
        """The host of a voter that answers."""
        seen = (self._seen(member) for member in self.members)
        return next((m.name for m in seen if m.answers and not m.learner), "")

    def _seen(self, member: MemberView) -> MemberView:
        host = member.peer_url.removeprefix("http://").removesuffix(":2380")
        quiet = host in self.silent
        if not quiet:
            self.ran.add(member.member_id)
        return replace(
            member,
            name=host if member.member_id in self.ran else "",
            answers=not quiet,
            caught_up=member.learner and not quiet,
            strikes=3 if quiet else 0,
            overdue=self.late and member.learner and quiet,
        )

    def apply(self, step: Step) -> None:
        if isinstance(step, AddLearner):
            assert sum(m.learner for m in self.members) < self.max_learners
            assert url(step.host) not in {m.peer_url for m in self.members}
            if any(not m.learner and not m.answers for m in self.view().members):
                return  # etcd: "unhealthy cluster"
            self.members.append(MemberView(self.next_id, "", step.peer_url, True, False))
            self.next_id += 1
        elif isinstance(step, Promote):
            self.members = [
                replace(m, learner=m.learner and m.member_id != step.member_id) for m in self.members
            ]
        elif isinstance(step, Remove):
            self.members = [m for m in self.members if m.member_id != step.member_id]
        done = finished_joins(self.view())
        self.joins = [join for join in self.joins if join.host not in done]

    def quorum_answers(self) -> bool:
        voters = [m for m in self.view().members if not m.learner]
        return sum(m.answers for m in voters) > len(voters) // 2

    def voters(self) -> int:
        return sum(not m.learner for m in self.members)


def grown(hosts: int, max_learners: int = 1) -> FakeEtcd:
    etcd = FakeEtcd(
        enabled=set(HOSTS[:hosts]),
        joins=[JoinRequest(host, url(host)) for host in HOSTS[1:hosts]],
        members=[MemberView(1, HOSTS[0], url(HOSTS[0]), False, True)],
        max_learners=max_learners,
    )
    settle(etcd)
    return etcd


def settle(etcd: FakeEtcd, limit: int = 60) -> str:
    for _ in range(limit):
        step = plan_step(etcd.view())
        if isinstance(step, Hold):
            return step.reason
        before = etcd.quorum_answers()
        etcd.apply(step)
        assert etcd.quorum_answers() or not before, f"{step} cost the quorum"
    raise AssertionError("the planner does not come to rest")


@given(st.integers(1, 7), st.integers(1, 2))
def test_a_growing_cluster_ends_with_an_odd_number_of_voters(hosts: int, max_learners: int) -> None:
    etcd = grown(hosts, max_learners)
    assert etcd.voters() == (hosts if hosts % 2 else hosts - 1)
    assert len(etcd.members) == hosts
    assert not etcd.joins


def test_the_second_host_stays_a_learner_until_a_third_asks() -> None:
    etcd = grown(2)
    assert [m.learner for m in etcd.members] == [False, True]
    etcd.enabled.add(HOSTS[2])
    etcd.joins.append(JoinRequest(HOSTS[2], url(HOSTS[2])))
    assert isinstance(plan_step(etcd.view()), Promote)
    settle(etcd)
    assert etcd.voters() == 3


def test_with_two_learner_places_the_second_waits_until_the_third_has_caught_up() -> None:
    etcd = grown(2, max_learners=2)
    etcd.enabled.add(HOSTS[2])
    etcd.joins.append(JoinRequest(HOSTS[2], url(HOSTS[2])))
    step = plan_step(etcd.view())
    assert step == AddLearner(HOSTS[2], url(HOSTS[2]))
    etcd.apply(step)
    etcd.silent.add(HOSTS[2])
    assert isinstance(plan_step(etcd.view()), Hold)
    etcd.silent.clear()
    assert isinstance(plan_step(etcd.view()), Promote)


def test_a_lost_member_is_removed_before_its_host_is_added_again() -> None:
    etcd = grown(3)
    lost = next(m for m in etcd.members if m.peer_url == url(HOSTS[1]))
    etcd.silent.add(HOSTS[1])
    etcd.joins.append(JoinRequest(HOSTS[1], url(HOSTS[1]), replaces=lost.member_id))
    step = plan_step(etcd.view())
    assert isinstance(step, Remove)
    assert (step.member_id, step.must_be_silent) == (lost.member_id, True)
    etcd.apply(step)
    step = plan_step(etcd.view())
    assert step == AddLearner(HOSTS[1], url(HOSTS[1]))
    etcd.apply(step)
    etcd.silent.clear()
    settle(etcd)
    assert etcd.voters() == 3


def test_a_member_that_answers_is_not_replaced() -> None:
    etcd = grown(3)
    present = next(m for m in etcd.members if m.peer_url == url(HOSTS[1]))
    etcd.joins.append(JoinRequest(HOSTS[1], url(HOSTS[1]), replaces=present.member_id))
    step = plan_step(etcd.view())
    assert isinstance(step, Hold)
    assert "its present one answers" in step.reason


def test_a_silent_voter_is_kept_unless_a_learner_can_take_its_place() -> None:
    etcd = grown(3)
    etcd.silent.add(HOSTS[2])
    assert isinstance(plan_step(etcd.view()), Hold)
    etcd = grown(4)
    etcd.silent.add(HOSTS[2])
    settle(etcd)
    voters = {m.peer_url for m in etcd.members if not m.learner}
    assert voters == {url(HOSTS[0]), url(HOSTS[1]), url(HOSTS[3])}


def test_a_silent_voter_makes_room_for_a_host_that_waits_since_etcd_takes_no_learner_before() -> None:
    etcd = grown(3)
    etcd.silent.add(HOSTS[2])
    ask(etcd, HOSTS[3])
    assert isinstance(plan_step(etcd.view()), Remove)
    settle(etcd)
    assert {m.peer_url for m in etcd.members if not m.learner} == {url(h) for h in (*HOSTS[:2], HOSTS[3])}


def test_a_silent_voter_is_removed_only_after_its_strikes() -> None:
    etcd = grown(4)
    etcd.silent.add(HOSTS[2])
    view = etcd.view()
    early = replace(view, members=tuple(replace(m, strikes=min(m.strikes, 2)) for m in view.members))
    assert isinstance(plan_step(early), Hold)
    assert isinstance(plan_step(view), Remove)


@pytest.mark.parametrize(("hosts", "silent", "left"), [(3, 1, 3), (5, 1, 5), (5, 2, 3), (7, 2, 5), (7, 3, 5)])
def test_silent_voters_are_removed_where_the_rest_tolerates_more_without_them(
    hosts: int, silent: int, left: int
) -> None:
    etcd = grown(hosts)
    etcd.silent = set(HOSTS[hosts - silent : hosts])
    settle(etcd)
    assert etcd.voters() == left


def test_a_learner_that_never_starts_makes_room_and_its_request_is_withdrawn() -> None:
    etcd = grown(3)
    etcd.silent.add(HOSTS[3])
    ask(etcd, HOSTS[3])
    etcd.apply(plan_step(etcd.view()))
    ask(etcd, HOSTS[4])
    assert "still a learner" in hold(etcd.view())
    step = plan_step(overdue(etcd.view()))
    assert isinstance(step, Remove)
    assert (step.host, step.withdraws_join) == (HOSTS[3], True)
    assert "never started" in step.reason
    etcd.apply(step)
    etcd.joins = [join for join in etcd.joins if join.host != HOSTS[3]]
    assert plan_step(etcd.view()) == AddLearner(HOSTS[4], url(HOSTS[4]))


def test_a_learner_that_answers_but_does_not_catch_up_is_removed() -> None:
    view = overdue(grown(2).view())
    behind = tuple(replace(m, caught_up=False) if m.learner else m for m in view.members)
    step = plan_step(replace(view, members=behind))
    assert isinstance(step, Remove)
    assert "did not catch up" in step.reason


def test_a_silent_learner_with_data_is_kept_until_another_host_waits() -> None:
    etcd = grown(2)
    etcd.silent.add(HOSTS[1])
    assert "no other host waits" in hold(overdue(etcd.view()))
    ask(etcd, HOSTS[2])
    assert isinstance(plan_step(overdue(etcd.view())), Remove)


def test_a_host_whose_service_is_away_is_neither_added_nor_counted_on() -> None:
    etcd = grown(2)
    ask(etcd, HOSTS[2])
    view = etcd.view()
    away = replace(view, joins=tuple(replace(join, alive=False) for join in view.joins))
    assert "its service does not answer" in hold(away), "and the second stays a learner"


def test_a_host_that_moved_is_removed_at_its_old_url_and_added_at_the_new_one() -> None:
    etcd = grown(3)
    moved, new_url = HOSTS[1], "http://elsewhere:2380"
    old = next(m for m in etcd.members if m.peer_url == url(moved))
    etcd.joins.append(JoinRequest(moved, new_url, replaces=old.member_id))
    etcd.silent.add(moved)
    step = plan_step(etcd.view())
    assert isinstance(step, Remove)
    assert step.member_id == old.member_id
    etcd.apply(step)
    assert plan_step(etcd.view()) == AddLearner(moved, new_url)


def test_a_request_ends_when_the_member_to_be_replaced_answers_wherever_it_is() -> None:
    etcd = grown(3)
    old = next(m for m in etcd.members if m.peer_url == url(HOSTS[1]))
    etcd.joins.append(JoinRequest(HOSTS[1], "http://elsewhere:2380", replaces=old.member_id))
    assert finished_joins(etcd.view()) == (HOSTS[1],)


def ask(etcd: FakeEtcd, host: str) -> None:
    etcd.enabled.add(host)
    etcd.joins.append(JoinRequest(host, url(host)))


def overdue(view: QuorumView) -> QuorumView:
    return replace(view, members=tuple(replace(m, overdue=m.learner) for m in view.members))


def hold(view: QuorumView) -> str:
    step = plan_step(view)
    assert isinstance(step, Hold), step
    return step.reason


def test_the_last_voter_is_never_removed() -> None:
    etcd = grown(1)
    etcd.enabled.clear()
    assert "cost the quorum" in settle(etcd)
    assert etcd.voters() == 1


def test_a_learner_takes_over_from_a_disabled_only_voter() -> None:
    etcd = grown(2)
    etcd.enabled.discard(HOSTS[0])
    settle(etcd)
    assert [m.peer_url for m in etcd.members] == [url(HOSTS[1])]
    assert etcd.voters() == 1


@pytest.mark.parametrize(("before", "left", "voters"), [(3, 2, 1), (5, 4, 3)])
def test_a_cluster_that_shrinks_to_an_even_number_takes_one_voter_out_after_a_while(
    before: int, left: int, voters: int
) -> None:
    etcd = grown(before)
    etcd.enabled.discard(HOSTS[1])
    settle(etcd)
    assert etcd.voters() == left, "not at once: the host may be coming back"
    etcd.even_for_long = True
    step = plan_step(etcd.view())
    assert isinstance(step, Remove)
    assert step.host == HOSTS[before - 1]
    etcd.apply(step)
    etcd.joins.append(JoinRequest(step.host, url(step.host)))
    settle(etcd)
    assert (etcd.voters(), len(etcd.members)) == (voters, left)
    etcd.enabled.add(HOSTS[1])
    etcd.joins.append(JoinRequest(HOSTS[1], url(HOSTS[1])))
    settle(etcd)
    assert etcd.voters() == before


def test_an_even_number_of_voters_stays_while_another_host_waits() -> None:
    etcd = grown(3)
    etcd.enabled.discard(HOSTS[1])
    settle(etcd)
    etcd.even_for_long = True
    etcd.enabled.add(HOSTS[1])
    etcd.joins.append(JoinRequest(HOSTS[1], url(HOSTS[1])))
    assert isinstance(plan_step(etcd.view()), AddLearner)


def test_a_member_that_nobody_knows_is_left_alone() -> None:
    etcd = grown(3)
    etcd.members.append(MemberView(999, "stranger", "http://192.0.2.1:2380", True, True))
    assert isinstance(plan_step(etcd.view()), Hold)


@settings(max_examples=300)
@given(st.data())
def test_no_sequence_of_joins_leaves_and_outages_costs_a_quorum_that_was_there(data: st.DataObject) -> None:
    etcd = grown(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2)))
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from(ACTS))
        host = data.draw(st.sampled_from(HOSTS))
        if act == "disable":
            etcd.enabled.discard(host)
            etcd.joins = [join for join in etcd.joins if join.host != host]
        elif act == "join":
            member = next((m for m in etcd.members if m.peer_url == url(host)), None)
            etcd.enabled.add(host)
            if host not in {join.host for join in etcd.joins}:
                etcd.joins.append(JoinRequest(host, url(host), member.member_id if member else 0))
        elif act == "silence":
            etcd.silent.add(host)
        elif act == "revive":
            etcd.silent.discard(host)
        elif act == "wait":
            etcd.late = not etcd.late
        elif act == "even":
            etcd.even_for_long = not etcd.even_for_long
        else:
            before = etcd.quorum_answers()
            step = plan_step(etcd.view())
            etcd.apply(step)
            assert not before or etcd.quorum_answers(), step
            assert sum(m.learner for m in etcd.members) <= etcd.max_learners


def test_tolerated_failures() -> None:
    assert [tolerated_failures(voters) for voters in range(6)] == [0, 0, 0, 1, 1, 2]
