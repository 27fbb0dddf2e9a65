"""Requests that are refused or failed: one sentence for the caller and the gRPC status that carries it."""

from __future__ import annotations

import grpc


class RequestError(Exception):
    """A request that is refused or failed: what happened, to what, what to do."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class InvalidRequest(RequestError):
    """An argument that can't be right."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(RequestError):
    """A name that is not known."""

    code = grpc.StatusCode.NOT_FOUND


class Unavailable(RequestError):
    """Something that is needed is away; the same request may work later, or at another host."""

    code = grpc.StatusCode.UNAVAILABLE


class Denied(RequestError):
    """The caller has not shown what it takes."""

    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(RequestError):
    """Nobody knows who asks."""

    code = grpc.StatusCode.UNAUTHENTICATED


class TookTooLong(RequestError):
    """Begun, and not finished within the deadline; the sentence says what is still awaited."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Overrun(RequestError):
    """Commands come faster than they are taken."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
