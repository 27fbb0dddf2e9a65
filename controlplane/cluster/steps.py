"""Carries out one membership step under the rule of `/cluster/step`.

etcd can't fence a change of members by a transaction. So the leader writes down the step, checks that the
members are still those it decided on, acts if its lease outlives the call by a second, and clears the record.
The lease is looked at again right before each call is sent: a leader that was suspended after its checks
wakes up with a lease that has ended, and does not act. A new leader finds the record that was left, and
clears it before it decides anything from a fresh list of members.

A raft leader whose member is to go hands raft's leadership over first, so that no read waits for an election.
"""

from __future__ import annotations

import uuid

from controlplane.base.logging import get_logger
from controlplane.cluster.observe import status_of
from controlplane.cluster.quorum import AddLearner, Promote, Remove
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership
from controlplane.store.endpoints import canonical_endpoint
from controlplane.store.errors import OutcomeUnknown, RequestRefused, StoreError, StoreUnavailable
from controlplane.store.membership import (
    MEMBER_CALL_SECONDS,
    Member,
    add_learner,
    list_members,
    move_raft_leader,
    promote_member,
    remove_member,
)
from controlplane.store.step import MembershipStep, StepAction, begin_step, clear_step, read_step

LEASE_MARGIN_SECONDS = 1.0
SILENCE_CHECKS = 2


class _LeaseTooShort(Exception):
    """The leader's lease does not outlive the call that was about to be sent."""


Action = AddLearner | Promote | Remove
log = get_logger("membership")


async def clear_left_step(client: EtcdClient, leadership: Leadership) -> None:
    """Clear the step that an earlier leader, or a lost answer, left. Raises StoreError."""
    left = await read_step(client)
    if left is not None:
        log.warning(
            "membership step cleared", action=left.action, host=left.host, reason="its outcome was not seen"
        )
        await clear_step(client, leadership, left)


async def carry_out(client: EtcdClient, leadership: Leadership, action: Action, seen: list[Member]) -> str:
    """Do one step and return what came of it, in words. Raises LeadershipLost, or StoreError."""
    step = _record(action, seen)
    if not await begin_step(client, leadership, step):
        return f"{step.action} of {action.host} waits: another step is in progress"
    obstacle = await _obstacle(client, leadership, action, seen)
    if obstacle:
        await clear_step(client, leadership, step)
        return f"{step.action} of {action.host} is put off: {obstacle}"
    try:
        await _act(client, leadership, action, seen)
    except _LeaseTooShort:
        await clear_step(client, leadership, step)
        return f"{step.action} of {action.host} is not made: the leader's lease is too short for the call"
    except OutcomeUnknown as error:
        return (
            f"{step.action} of {action.host} got no answer ({error}); the next cycle looks what became of it"
        )
    except (RequestRefused, StoreUnavailable) as error:
        await clear_step(client, leadership, step)
        return f"{step.action} of {action.host} was not taken by etcd: {error}"
    return await _end(client, leadership, step, _why(action))


async def _end(client: EtcdClient, leadership: Leadership, step: MembershipStep, why: str) -> str:
    """What came of a step that is done, whether or not its record can be cleared now."""
    log.info("membership step done", action=step.action, host=step.host, reason=why)
    done = f"{step.action} of {step.host} done{why}"
    try:
        await clear_step(client, leadership, step)
    except (OutcomeUnknown, StoreUnavailable) as error:
        return f"{done}; its record stays for the next cycle ({error})"
    return done


def _record(action: Action, seen: list[Member]) -> MembershipStep:
    ids = tuple(sorted(member.id for member in seen))
    step_id = uuid.uuid4().hex
    if isinstance(action, AddLearner):
        return MembershipStep(step_id, "add", action.host, 0, action.peer_url, ids)
    peer_url = next((m.peer_urls[0] for m in seen if m.id == action.member_id and m.peer_urls), "unknown")
    kind: StepAction = "promote" if isinstance(action, Promote) else "remove"
    return MembershipStep(step_id, kind, action.host, action.member_id, peer_url, ids)


def _why(action: Action) -> str:
    return f" ({action.reason})" if isinstance(action, Remove) else ""


async def _obstacle(client: EtcdClient, leadership: Leadership, action: Action, seen: list[Member]) -> str:
    """Return why the step must not be made now; empty when nothing speaks against it."""
    if await list_members(client) != seen:
        return "the members changed since it was decided"
    if isinstance(action, Remove) and action.must_be_silent:
        member = next(m for m in seen if m.id == action.member_id)
        for _ in range(SILENCE_CHECKS):
            if await status_of(client, member) is not None:
                return "the member answers"
    if not _lease_is_long_enough(leadership):
        return "the leader's lease is too short for the call"
    return ""


def _lease_is_long_enough(leadership: Leadership) -> bool:
    return leadership.outlives(MEMBER_CALL_SECONDS + LEASE_MARGIN_SECONDS)


async def _act(client: EtcdClient, leadership: Leadership, action: Action, seen: list[Member]) -> None:
    def guard() -> None:
        if not _lease_is_long_enough(leadership):
            raise _LeaseTooShort

    if isinstance(action, AddLearner):
        await add_learner(client, action.peer_url, guard=guard)
    elif isinstance(action, Promote):
        await promote_member(client, action.member_id, guard=guard)
    else:
        await _hand_raft_over(client, action, seen)
        await remove_member(client, action.member_id, guard=guard)


async def _hand_raft_over(client: EtcdClient, action: Remove, seen: list[Member]) -> None:
    """Let another voter lead raft when the member to be removed does. The removal goes on without it too."""
    leaving = next((m for m in seen if m.id == action.member_id), None)
    status = await status_of(client, leaving) if leaving is not None else None
    if leaving is None or status is None or status.leader_id != leaving.id:
        return
    for heir in seen:
        if heir.learner or heir.id == leaving.id or await status_of(client, heir) is None:
            continue
        try:
            await move_raft_leader(client, canonical_endpoint(leaving.client_urls[0]), heir.id)
        except (StoreError, KeyError) as error:
            log.info("raft leadership not handed over", host=action.host, reason=str(error))
        else:
            log.info("raft leadership handed over", leaving=action.host, to=heir.name)
        return
