"""One call of the cluster API, with its failures as sentences and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from akv.v1 import cluster_pb2_grpc

from controlplane.base.addresses import HostPort

DEFAULT_PORT = 5000
HOST_METADATA = "awide-host"

OK, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 3

T = TypeVar("T")


class CallError(Exception):
    """A call that failed: one sentence (what happened, to what, what to do) and the exit code."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def call_cluster(
    target: HostPort,
    timeout: float,
    action: str,
    method: Callable[[Any], Callable[..., T]],
    request: Any,
    service: Callable[[grpc.Channel], Any] = cluster_pb2_grpc.ClusterServiceStub,
) -> T:
    """Call one method of a service at `target` within `timeout` seconds. Raises CallError.

    `service` makes the stub (ClusterServiceStub unless another is given), `method` takes its method.
    """
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(str(target), options=options) as channel:
        try:
            return method(service(channel))(request, timeout=timeout)
        except grpc.RpcError as error:
            raise _explain(error, target, timeout, action) from None


def _explain(error: grpc.RpcError, target: HostPort, timeout: float, action: str) -> CallError:
    assert isinstance(error, grpc.Call)
    code, details = error.code(), error.details() or ""
    host = dict(error.trailing_metadata() or ()).get(HOST_METADATA)
    if host is not None:
        return CallError(f"{action} failed on {host}: {details}", REFUSED)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CallError(
            f"{action}: {target} gave no answer within {timeout:g} s; "
            "see its log, or allow more time with --timeout",
            UNREACHABLE,
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return CallError(
            f"{action}: no cluster service answers at {target}; "
            "start awide-cluster there, or name another host with --host",
            UNREACHABLE,
        )
    return CallError(f"{action}: {target} answered {code.name}: {details}", REFUSED)
