"""Every error of etcd has a meaning, and what is unknown takes the outage path."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.store.errors import Action, Refusal, judge, mapped_texts

C = grpc.StatusCode

# etcd 3.5 and 3.6: gRPC code, text without "etcdserver: ", action, whether a write may have happened.
TABLE = [
    (C.INVALID_ARGUMENT, "key is not provided", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "key not found", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "value is provided", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "lease is provided", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "ttl is 0", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "too many operations in txn request", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "duplicate key given in txn request", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "invalid client api version", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "invalid sort option", Action.FATAL, False),
    (C.OUT_OF_RANGE, "mvcc: required revision has been compacted", Action.FATAL, False),
    (C.OUT_OF_RANGE, "mvcc: required revision is a future revision", Action.FATAL, False),
    (C.RESOURCE_EXHAUSTED, "mvcc: database space exceeded", Action.OUTAGE, False),
    (C.NOT_FOUND, "requested lease not found", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "lease already exists", Action.FATAL, False),
    (C.OUT_OF_RANGE, "too large lease TTL", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "member ID already exist", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "Peer URLs already exists", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "re-configuration failed due to not enough started members", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "given member URLs are invalid", Action.FATAL, False),
    (C.NOT_FOUND, "member not found", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "can only promote a learner member", Action.FATAL, False),
    (
        C.FAILED_PRECONDITION,
        "can only promote a learner member which is in sync with leader",
        Action.FATAL,
        False,
    ),
    (C.FAILED_PRECONDITION, "too many learner members in cluster", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "request is too large", Action.FATAL, False),
    (C.RESOURCE_EXHAUSTED, "too many requests", Action.ELSEWHERE, False),
    (C.FAILED_PRECONDITION, "root user does not exist", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "root user does not have root role", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "user name already exists", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "user name is empty", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "user name not found", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "role name already exists", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "role name not found", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "role name is empty", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "authentication failed, invalid user ID or password", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "permission not given", Action.FATAL, False),
    (C.PERMISSION_DENIED, "permission denied", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "role is not granted to the user", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "permission is not granted to the role", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "authentication is not enabled", Action.FATAL, False),
    (C.UNAUTHENTICATED, "invalid auth token", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "invalid auth management", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "revision of auth store is old", Action.ELSEWHERE, False),
    (C.UNAVAILABLE, "no leader", Action.ELSEWHERE, False),
    (C.FAILED_PRECONDITION, "not leader", Action.ELSEWHERE, False),
    (C.UNAVAILABLE, "leader changed", Action.ELSEWHERE, True),
    (C.UNAVAILABLE, "not capable", Action.ELSEWHERE, False),
    (C.UNAVAILABLE, "server stopped", Action.ELSEWHERE, True),
    (C.UNAVAILABLE, "request timed out", Action.ELSEWHERE, True),
    (C.UNAVAILABLE, "request timed out, possibly due to previous leader failure", Action.ELSEWHERE, True),
    (C.UNAVAILABLE, "request timed out, possibly due to connection lost", Action.ELSEWHERE, True),
    (C.UNAVAILABLE, "request timed out, waiting for the applied index took too long", Action.ELSEWHERE, True),
    (C.UNAVAILABLE, "unhealthy cluster", Action.ELSEWHERE, False),
    (C.DATA_LOSS, "corrupt cluster", Action.OUTAGE, False),
    (C.UNAVAILABLE, "rpc not supported for learner", Action.ELSEWHERE, False),
    (C.FAILED_PRECONDITION, "bad leader transferee", Action.FATAL, False),
    (C.UNAVAILABLE, "cluster version not found during downgrade", Action.ELSEWHERE, False),
    (C.INVALID_ARGUMENT, "wrong downgrade target version format", Action.FATAL, False),
    (C.INVALID_ARGUMENT, "invalid downgrade target version", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "cluster has a downgrade job in progress", Action.FATAL, False),
    (C.FAILED_PRECONDITION, "no inflight downgrade job", Action.FATAL, False),
]


@pytest.mark.parametrize(("code", "text", "action", "unsure"), TABLE, ids=[row[1] for row in TABLE])
def test_the_table(code: grpc.StatusCode, text: str, action: Action, unsure: bool) -> None:
    verdict = judge(code, f"etcdserver: {text}")
    assert (verdict.action, verdict.may_have_happened) == (action, unsure)
    assert verdict.live, "a text of etcd comes from a live endpoint"


def test_the_table_is_complete() -> None:
    assert {row[1] for row in TABLE} == mapped_texts()


@given(st.sampled_from(C), st.text())
def test_unmapped_etcd_texts_are_an_outage(code: grpc.StatusCode, text: str) -> None:
    if text in mapped_texts():
        return
    verdict = judge(code, f"etcdserver: {text}")
    assert (verdict.action, verdict.may_have_happened) == (Action.OUTAGE, True)


ELSEWHERE_CODES = {C.UNAVAILABLE, C.DEADLINE_EXCEEDED, C.CANCELLED, C.INTERNAL, C.UNIMPLEMENTED}
FATAL_CODES = {C.UNAUTHENTICATED, C.PERMISSION_DENIED}


@pytest.mark.parametrize("code", list(C))
def test_every_code_of_grpc_itself(code: grpc.StatusCode) -> None:
    verdict = judge(code, "something happened")
    if code in ELSEWHERE_CODES:
        assert (verdict.action, verdict.live) == (Action.ELSEWHERE, False)
    elif code in FATAL_CODES:
        assert verdict.action is Action.FATAL
    else:
        assert (verdict.action, verdict.may_have_happened) == (Action.OUTAGE, True)


def test_a_write_is_sure_not_to_have_happened_only_without_a_connection() -> None:
    refused = judge(C.UNAVAILABLE, "failed to connect to all addresses; last error: Connection refused")
    assert (refused.action, refused.may_have_happened, refused.live) == (Action.ELSEWHERE, False, False)
    assert judge(C.UNAVAILABLE, "Socket closed").may_have_happened
    assert judge(C.DEADLINE_EXCEEDED, "Deadline Exceeded").may_have_happened


def test_refusals_that_callers_act_on() -> None:
    assert judge(C.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted").refusal is (
        Refusal.COMPACTED
    )
    assert judge(C.INVALID_ARGUMENT, "etcdserver: ttl is 0").refusal is Refusal.OTHER


@pytest.mark.parametrize(
    ("text", "action", "refusal"),
    [
        ("auth: permission denied", Action.FATAL, Refusal.PERMISSION_DENIED),
        ("auth: revision in header is old", Action.ELSEWHERE, Refusal.OTHER),
        ("auth: user name is empty", Action.FATAL, Refusal.OTHER),
        ("auth: something new", Action.OUTAGE, Refusal.OTHER),
    ],
)
def test_the_access_controls_own_errors(text: str, action: Action, refusal: Refusal) -> None:
    """As Defragment gives them: without etcd's prefix, and with a code that says nothing."""
    verdict = judge(C.UNKNOWN, text)
    assert (verdict.action, verdict.refusal) == (action, refusal)
