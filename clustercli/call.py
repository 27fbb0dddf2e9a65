"""One call of the cluster API, with its failures as sentences and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from akv.v1 import cluster_pb2_grpc

from clustercli.target import Target

HOST_METADATA = "awide-host"

OK, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3

T = TypeVar("T")


# What the same call may not meet the next time: no host, no leader, or a node that is away for a while.
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


class CallError(Exception):
    """A call that failed: one sentence (what happened, to what, what to do) and the exit code.

    `passing`: the same call may succeed a little later.
    """

    def __init__(self, sentence: str, exit_code: int, *, passing: bool = False) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.passing = passing


def call_cluster(
    target: Target,
    timeout: float,
    action: str,
    method: Callable[[Any], Callable[..., T]],
    request: Any,
    service: Callable[[grpc.Channel], Any] = cluster_pb2_grpc.ClusterServiceStub,
) -> T:
    """Call one method of a service at `target` within `timeout` seconds. Raises CallError.

    `service` makes the stub (ClusterServiceStub unless another is given), `method` takes its method.
    """
    with target.channel() as channel:
        try:
            return method(service(channel))(request, timeout=timeout)
        except grpc.RpcError as error:
            raise _explain(error, target, timeout, action) from None


def _explain(error: grpc.RpcError, target: Target, timeout: float, action: str) -> CallError:
    assert isinstance(error, grpc.Call)
    code, details = error.code(), error.details() or ""
    host = dict(error.trailing_metadata() or ()).get(HOST_METADATA)
    if host is not None:
        return CallError(f"{action} failed on {host}: {details}", REFUSED, passing=code in _PASSING)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallError(
            f"{action}: {target} gave no answer within {timeout:g} s; "
            "see its log, or allow more time with --timeout",
            UNREACHABLE,
            passing=True,
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return CallError(f"{action}: {_no_connection(target, details)}", UNREACHABLE, passing=True)
    return CallError(f"{action}: {target} answered {code.name}: {details}", REFUSED)


def _no_connection(target: Target, details: str) -> str:
    """Why there is no connection, as far as it can be told: TLS refuses without a word of its own."""
    lowered = details.lower()
    if target.credentials is None and ("socket closed" in lowered or "reset" in lowered):
        return (
            f"{target} ends the connection at once; if it runs with AWC_SECURITY=mtls, give --ca, --cert and "
            "--key, or ask on that host itself as root"
        )
    if target.credentials is not None and any(word in lowered for word in ("verif", "handshake", "ssl")):
        return (
            f"{target} shows no certificate of a host of your cluster ({details[:200]}); is it the right "
            "host, and --ca the right CA?"
        )
    if target.credentials is not None and "socket closed" in lowered:
        return f"{target} does not take the certificate of {target.credentials.identity}; see its log"
    return (
        f"no cluster service answers at {target}; start awide-cluster there, or name another host with --host"
    )
