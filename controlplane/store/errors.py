"""What can go wrong with etcd, and what each of its error codes means for a call.

Every error maps to one of three actions: retry on another endpoint, treat it as an outage, or give it to the
caller as a refusal (fatal). What is not in the table is an outage, so that an error of a newer etcd never
skips the outage path. Beside the action stands whether a write may have happened all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

import grpc

ETCD_PREFIX = "etcdserver: "


class Action(Enum):
    """What a call does with an error."""

    ELSEWHERE = "retry elsewhere"
    OUTAGE = "outage"
    FATAL = "fatal"


class Refusal(StrEnum):
    """Why etcd refused a request; callers act on these and treat OTHER as a defect of the request."""

    COMPACTED = "compacted"
    FUTURE_REVISION = "future revision"
    LEASE_NOT_FOUND = "lease not found"
    LEASE_EXISTS = "lease exists"
    MEMBER_NOT_FOUND = "member not found"
    MEMBER_EXISTS = "member exists"
    PEER_URL_EXISTS = "peer URL exists"
    NOT_ENOUGH_STARTED = "not enough started members"
    NOT_A_LEARNER = "not a learner"
    LEARNER_NOT_READY = "learner not ready"
    TOO_MANY_LEARNERS = "too many learners"
    PERMISSION_DENIED = "permission denied"
    NAME_EXISTS = "name exists"
    USER_NOT_FOUND = "user not found"
    ROLE_NOT_GRANTED = "role not granted"
    OTHER = "other"


class StoreError(Exception):
    """Base of everything that this package raises about etcd."""


class StoreUnavailable(StoreError):
    """Outage: no endpoint gave a usable answer within the deadline. Nothing was written."""


class OutcomeUnknown(StoreError):
    """A write was sent and its answer is missing: it may have happened. Resolve it by reading."""


class RequestRefused(StoreError):
    """etcd understood the request and said no; repeating it as it is makes no sense."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Verdict:
    """Meaning of one error.

    `may_have_happened`: a write may have been carried out. `live`: the endpoint itself answered, so it is
    not to be put in quarantine.
    """

    action: Action
    may_have_happened: bool = False
    live: bool = True
    refusal: Refusal = Refusal.OTHER


_RETRY = Verdict(Action.ELSEWHERE)
_RETRY_UNSURE = Verdict(Action.ELSEWHERE, may_have_happened=True)
_OUTAGE = Verdict(Action.OUTAGE)
_UNMAPPED = Verdict(Action.OUTAGE, may_have_happened=True)
_FATAL = Verdict(Action.FATAL)
_DEAD = Verdict(Action.ELSEWHERE, live=False)
_DEAD_UNSURE = Verdict(Action.ELSEWHERE, may_have_happened=True, live=False)


def _refused(refusal: Refusal) -> Verdict:
    return Verdict(Action.FATAL, refusal=refusal)


# etcd's own texts, without their prefix. The text decides, since etcd uses one gRPC code for many meanings.
_BY_TEXT: dict[str, Verdict] = {
    # This endpoint can't serve the call now, another one may.
    "no leader": _RETRY,
    "not leader": _RETRY,
    "not capable": _RETRY,
    "too many requests": _RETRY,
    "unhealthy cluster": _RETRY,
    "rpc not supported for learner": _RETRY,
    "revision of auth store is old": _RETRY,
    "cluster version not found during downgrade": _RETRY,
    # As before, and a write may have been proposed already.
    "leader changed": _RETRY_UNSURE,
    "server stopped": _RETRY_UNSURE,
    "request timed out": _RETRY_UNSURE,
    "request timed out, possibly due to previous leader failure": _RETRY_UNSURE,
    "request timed out, possibly due to connection lost": _RETRY_UNSURE,
    "request timed out, waiting for the applied index took too long": _RETRY_UNSURE,
    # The whole cluster is in this state.
    "mvcc: database space exceeded": _OUTAGE,
    "corrupt cluster": _OUTAGE,
    # Refusals with a meaning.
    "mvcc: required revision has been compacted": _refused(Refusal.COMPACTED),
    "mvcc: required revision is a future revision": _refused(Refusal.FUTURE_REVISION),
    "requested lease not found": _refused(Refusal.LEASE_NOT_FOUND),
    "lease already exists": _refused(Refusal.LEASE_EXISTS),
    "member not found": _refused(Refusal.MEMBER_NOT_FOUND),
    "member ID already exist": _refused(Refusal.MEMBER_EXISTS),
    "Peer URLs already exists": _refused(Refusal.PEER_URL_EXISTS),
    "re-configuration failed due to not enough started members": _refused(Refusal.NOT_ENOUGH_STARTED),
    "can only promote a learner member": _refused(Refusal.NOT_A_LEARNER),
    "can only promote a learner member which is in sync with leader": _refused(Refusal.LEARNER_NOT_READY),
    "too many learner members in cluster": _refused(Refusal.TOO_MANY_LEARNERS),
    "permission denied": _refused(Refusal.PERMISSION_DENIED),
    # Refusals that are a mistake in the request or in the set-up.
    "key is not provided": _FATAL,
    "key not found": _FATAL,
    "value is provided": _FATAL,
    "lease is provided": _FATAL,
    "ttl is 0": _FATAL,
    "too many operations in txn request": _FATAL,
    "duplicate key given in txn request": _FATAL,
    "invalid client api version": _FATAL,
    "invalid sort option": _FATAL,
    "too large lease TTL": _FATAL,
    "given member URLs are invalid": _FATAL,
    "request is too large": _FATAL,
    "root user does not exist": _FATAL,
    "root user does not have root role": _FATAL,
    "user name already exists": _refused(Refusal.NAME_EXISTS),
    "user name is empty": _FATAL,
    "user name not found": _refused(Refusal.USER_NOT_FOUND),
    "role is not granted to the user": _refused(Refusal.ROLE_NOT_GRANTED),
    "role name already exists": _refused(Refusal.NAME_EXISTS),
    "role name not found": _FATAL,
    "role name is empty": _FATAL,
    "authentication failed, invalid user ID or password": _FATAL,
    "permission not given": _FATAL,
    "permission is not granted to the role": _FATAL,
    "authentication is not enabled": _FATAL,
    "invalid auth token": _FATAL,
    "invalid auth management": _FATAL,
    "bad leader transferee": _FATAL,
    "wrong downgrade target version format": _FATAL,
    "invalid downgrade target version": _FATAL,
    "cluster has a downgrade job in progress": _FATAL,
    "no inflight downgrade job": _FATAL,
}

# Some calls (Defragment is one) give the access control's own error as it is, with the code UNKNOWN.
_BY_BARE_TEXT: dict[str, Verdict] = {
    "auth: permission denied": _refused(Refusal.PERMISSION_DENIED),
    "auth: revision in header is old": _RETRY,
    "auth: user name is empty": _FATAL,
}

# Errors that are gRPC's own: the connection, the deadline, or something that is no etcd.
_BY_CODE: dict[grpc.StatusCode, Verdict] = {
    grpc.StatusCode.UNAVAILABLE: _DEAD_UNSURE,
    grpc.StatusCode.DEADLINE_EXCEEDED: _DEAD_UNSURE,
    grpc.StatusCode.CANCELLED: _DEAD_UNSURE,
    grpc.StatusCode.INTERNAL: _DEAD_UNSURE,
    grpc.StatusCode.UNIMPLEMENTED: Verdict(Action.ELSEWHERE, live=False),
    grpc.StatusCode.UNAUTHENTICATED: _FATAL,
    grpc.StatusCode.PERMISSION_DENIED: _refused(Refusal.PERMISSION_DENIED),
}

# gRPC says so only while it has no connection, that is before it sends anything.
_NEVER_SENT = "failed to connect to all addresses"


def judge(code: grpc.StatusCode, details: str) -> Verdict:
    """The meaning of a gRPC status. Total: every code and text has one."""
    if details.startswith(ETCD_PREFIX):
        return _BY_TEXT.get(details.removeprefix(ETCD_PREFIX), _UNMAPPED)
    if details in _BY_BARE_TEXT:
        return _BY_BARE_TEXT[details]
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT):
        return _DEAD
    return _BY_CODE.get(code, _UNMAPPED)


def mapped_texts() -> frozenset[str]:
    """Every etcd text that has an entry of its own."""
    return frozenset(_BY_TEXT)
