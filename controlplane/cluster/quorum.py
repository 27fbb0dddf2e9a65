"""The pure planner of etcd's membership: what the leader sees in, one step (or none, and why) out.

Rules, in the order in which they are tried:

1. A member whose host lost its data and asked to join anew is removed, so that the host can start clean.
2. A learner that has caught up is promoted when that brings the wanted voters to an odd number.
3. A member of a disabled host is removed.
4. A voter that stayed silent for `strikes_limit` cycles is removed when another host can take its place, or
   when the smaller quorum tolerates more (two silent of five: the three others tolerate one once they are
   gone). Else it is kept, since it may come back with its data.
5. A learner that is overdue is removed when it never started, answers but does not catch up, or stands in
   another host's way.
6. A host that asked to join, and whose service answers, is added as a learner.
7. When an even number of voters has stood for long, and nobody comes, one of them is removed: its host joins
   again as a learner, which may be lost at no cost.

No removal and no promotion is planned that would leave fewer answering voters than the new quorum needs.
Members are named by id and found by peer URL: a member that never started has no name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberView:
    """One etcd member as the leader sees it in this cycle.

    `name` is empty while the member never started; `answers` says whether it answered a status call just now;
    `strikes` counts the cycles in a row, this one included, without an answer. About learners: `caught_up`,
    and `overdue` once it was not ready to be promoted for the time that is allowed.
    """

    member_id: int
    name: str
    peer_url: str
    learner: bool
    answers: bool
    caught_up: bool = False
    strikes: int = 0
    overdue: bool = False

    @property
    def started(self) -> bool:
        """Whether the member ever started (only then it knows its name)."""
        return bool(self.name)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A host that has no data and wants a fresh member; `replaces` is the id of its lost member, or 0.

    `alive` says whether the host's service answered just now.
    """

    host: str
    peer_url: str
    replaces: int = 0
    alive: bool = True


@dataclass(frozen=True, slots=True)
class QuorumView:
    """Everything one decision is made from. `joins` is in the order in which the hosts asked.

    `leader_host` is the host that decides; `even_for_long` says that the number of voters has been even for
    the time that is allowed.
    """

    members: tuple[MemberView, ...]
    hosts_by_peer_url: dict[str, str]
    enabled_hosts: frozenset[str]
    joins: tuple[JoinRequest, ...] = ()
    max_learners: int = 1
    strikes_limit: int = 3
    leader_host: str = ""
    even_for_long: bool = False

    @property
    def voters(self) -> tuple[MemberView, ...]:
        """Members that count for the quorum."""
        return tuple(member for member in self.members if not member.learner)

    @property
    def learners(self) -> tuple[MemberView, ...]:
        """Members that don't count for the quorum."""
        return tuple(member for member in self.members if member.learner)

    def host_of(self, member: MemberView) -> str:
        """The host a member belongs to, by its peer URL; its own name when no host has that URL."""
        return self.hosts_by_peer_url.get(member.peer_url, member.name)


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Add a learner at `peer_url` for `host`."""

    host: str
    peer_url: str


@dataclass(frozen=True, slots=True)
class Promote:
    """Make a learner a voter."""

    member_id: int
    host: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a member out of the cluster. `must_be_silent`: only if a fresh check still finds it silent.

    `withdraws_join`: the host's request to join ends with it, and the host is told the reason.
    """

    member_id: int
    host: str
    reason: str
    must_be_silent: bool
    withdraws_join: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing to do, or nothing that is safe now; `reason` is empty when all is as wanted."""

    reason: str


Step = AddLearner | Promote | Remove | Hold


def plan_step(view: QuorumView) -> Step:
    """Return the one next step towards the wanted membership."""
    blocked: list[str] = []
    for rule in (_replace_lost, _promote, _remove_disabled, _remove_silent, _remove_overdue, _add, _even_out):
        step = rule(view)
        if isinstance(step, Hold):
            blocked.append(step.reason)
        elif step is not None:
            return step
    return Hold("; ".join(blocked))


def finished_joins(view: QuorumView) -> tuple[str, ...]:
    """Hosts whose join request has no object any more: a member runs at their peer URL.

    That holds for the member to be replaced too, at whatever URL. A request must not lie about until that one
    is down for another reason; a host that did lose its data repeats it.
    """
    running = [member for member in view.members if member.started and member.answers]
    urls, ids = {m.peer_url for m in running}, {m.member_id for m in running}
    return tuple(join.host for join in view.joins if join.peer_url in urls or join.replaces in ids)


def tolerated_failures(voters: int) -> int:
    """How many voters may fail before the quorum is lost."""
    return max(0, (voters - 1) // 2)


def removal_keeps_quorum(members: Iterable[MemberView], member_id: int) -> bool:
    """Whether the voters that answer are still a majority once the member is gone. Learners cost nothing."""
    listed = tuple(members)
    if any(member.member_id == member_id and member.learner for member in listed):
        return True
    return _majority_answers([m for m in listed if not m.learner and m.member_id != member_id])


def _majority_answers(voters: list[MemberView]) -> bool:
    return bool(voters) and sum(voter.answers for voter in voters) >= _majority(len(voters))


def _majority(voters: int) -> int:
    return voters // 2 + 1


def _remove(view: QuorumView, member: MemberView, reason: str, must_be_silent: bool) -> Remove | Hold:
    host = view.host_of(member)
    if not removal_keeps_quorum(view.members, member.member_id):
        return Hold(f"the member of {host} is not removed ({reason}): that would cost the quorum")
    return Remove(member.member_id, host, reason, must_be_silent)


def _replace_lost(view: QuorumView) -> Step | None:
    for join in view.joins:
        lost = next((m for m in view.members if m.member_id == join.replaces), None)
        if lost is None:
            continue
        if lost.answers:
            return Hold(f"{join.host} asked for a new member, but its present one answers")
        return _remove(view, lost, "its host lost etcd's data and joins anew", must_be_silent=True)
    return None


def _promote(view: QuorumView) -> Step | None:
    """Keep the wanted voters odd: an even number has one more that can fail and tolerates no more."""
    keepers = [voter for voter in view.voters if view.host_of(voter) in view.enabled_hosts]
    ready = [m for m in view.learners if _ready(view, m)]
    # Where etcd takes one learner only, the waiting one has to move up before the next host can be added.
    full = len(view.learners) >= view.max_learners
    coming = 1 if full and _waiting(view) else 0
    reachable = len(keepers) + len(ready) + coming
    wanted = reachable if reachable % 2 else reachable - 1
    if not ready or len(keepers) >= wanted:
        return None
    candidate = ready[0]
    evens_out = len(view.voters) % 2 == 1
    spare = all(voter.answers for voter in view.voters) or not evens_out
    if not spare or not _majority_answers([*view.voters, candidate]):
        return Hold(f"the learner of {view.host_of(candidate)} waits: a voter does not answer")
    return Promote(candidate.member_id, view.host_of(candidate))


def _ready(view: QuorumView, member: MemberView) -> bool:
    wanted = view.host_of(member) in view.enabled_hosts
    return wanted and member.started and member.answers and member.caught_up


def _remove_disabled(view: QuorumView) -> Step | None:
    known = set(view.hosts_by_peer_url.values())
    held: Hold | None = None
    for member in view.members:
        host = view.host_of(member)
        if host not in known or host in view.enabled_hosts:
            continue
        step = _remove(view, member, "its host is disabled", must_be_silent=False)
        if not isinstance(step, Hold):
            return step
        held = step
    return held


def _remove_silent(view: QuorumView) -> Step | None:
    silent = [v for v in view.voters if v.strikes >= view.strikes_limit and not v.answers]
    if not silent:
        return None
    replaced = bool(_waiting(view)) or any(_ready(view, learner) for learner in view.learners)
    if not replaced and not _tolerates_more_without(view, len(silent)):
        return None
    return _remove(view, silent[0], f"it was silent for {silent[0].strikes} cycles", must_be_silent=True)


def _tolerates_more_without(view: QuorumView, silent: int) -> bool:
    """Whether the answering voters could lose more of them once the silent ones don't count any more."""
    voters = len(view.voters)
    return _majority(voters - silent) < _majority(voters)


def _remove_overdue(view: QuorumView) -> Step | None:
    for learner in view.learners:
        if not learner.overdue or _ready(view, learner):
            continue
        why = _why_overdue(learner)
        if learner.started and not learner.answers and not _waiting(view):
            return Hold(f"the learner of {view.host_of(learner)} is kept: {why}, and no other host waits")
        return Remove(learner.member_id, view.host_of(learner), why, False, withdraws_join=True)
    return None


def _why_overdue(learner: MemberView) -> str:
    if not learner.started:
        return "its etcd member never started in the time allowed"
    if not learner.answers:
        return "its etcd member was silent for the time allowed"
    return "its etcd member did not catch up in the time allowed"


def _waiting(view: QuorumView) -> list[JoinRequest]:
    """Requests that a learner can be added for: not those whose member stands, lost or not."""
    return [join for join in _unserved(view) if join.alive]


def _unserved(view: QuorumView) -> list[JoinRequest]:
    urls, ids = {m.peer_url for m in view.members}, {m.member_id for m in view.members}
    wanted = (join for join in view.joins if join.host in view.enabled_hosts)
    return [join for join in wanted if join.peer_url not in urls and join.replaces not in ids]


def _add(view: QuorumView) -> Step | None:
    waiting = _waiting(view)
    if not waiting:
        away = ", ".join(join.host for join in _unserved(view))
        return Hold(f"{away} asked to join, but its service does not answer") if away else None
    first = waiting[0]
    if len(view.learners) >= view.max_learners:
        names = ", ".join(view.host_of(member) for member in view.learners)
        return Hold(f"{first.host} waits to join: {names} is still a learner")
    return AddLearner(first.host, first.peer_url)


def _even_out(view: QuorumView) -> Step | None:
    """One of two voters less: the loss of the other host then costs nothing, instead of the quorum."""
    if not view.even_for_long or len(view.voters) % 2 or view.learners or _waiting(view):
        return None
    if not all(voter.answers for voter in view.voters):
        return None
    others = [voter for voter in view.voters if view.host_of(voter) != view.leader_host]
    if not others or view.host_of(others[-1]) not in view.enabled_hosts:
        return None
    reason = f"{len(view.voters)} voters are to be an odd number; it joins again as a learner"
    return _remove(view, others[-1], reason, must_be_silent=False)
