"""Refusals of the fleet: one sentence (what happened, to what, what next) and the gRPC status for it."""

from __future__ import annotations

import grpc


class FleetError(Exception):
    """A request that is refused or failed."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class InvalidRequest(FleetError):
    """An argument that can't be right."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(FleetError):
    """A name that the fleet does not know."""

    code = grpc.StatusCode.NOT_FOUND


class Unavailable(FleetError):
    """The same request may work later, or at another host."""

    code = grpc.StatusCode.UNAVAILABLE


class NotConnected(Unavailable):
    """The node has no stream at the moment."""


class Overrun(FleetError):
    """The node takes commands more slowly than they come."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class NotAnswered(FleetError):
    """The node did not answer in time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
