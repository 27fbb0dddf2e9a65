"""Refusals of the cluster API: one sentence for the operator and the gRPC status that carries it."""

from __future__ import annotations

import grpc


class ClusterError(Exception):
    """A request that is refused or failed: what happened, to what, what to do."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class InvalidRequest(ClusterError):
    """An argument that can't be right."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(ClusterError):
    """A name that the cluster does not know."""

    code = grpc.StatusCode.NOT_FOUND


class Unavailable(ClusterError):
    """etcd or another host is away; the same request may work later."""

    code = grpc.StatusCode.UNAVAILABLE


class Denied(ClusterError):
    """The caller has not shown what it takes."""

    code = grpc.StatusCode.PERMISSION_DENIED


class TookTooLong(ClusterError):
    """Begun, and not finished within the deadline; the sentence says what is still awaited."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
