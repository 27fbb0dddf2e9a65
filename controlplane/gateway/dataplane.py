"""The dataplane as the control process sees it: one gRPC channel over its Unix socket."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from akv.v1 import dataplane_pb2, dataplane_pb2_grpc

from controlplane.gateway.messages import PlanError, plan_from_message, plan_to_message
from controlplane.model.plan import GatewayPlan

CALL_SECONDS = 2.0

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Unix sockets have no host; the name must be a valid HTTP/2 authority for every gRPC server.
    ("grpc.default_authority", "localhost"),
)


class DataplaneError(Exception):
    """The dataplane did not answer, or refused. `refused` tells the second from the first."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Served:
    """The plan that the dataplane serves and its sequence number; no plan and 0 when it was just started.

    Not `settled`: the dataplane may as well serve the one before.
    """

    plan: GatewayPlan | None
    sequence: int
    settled: bool = True


class DataplaneClient:
    """Calls of DataplaneService, each with a deadline. Raises DataplaneError."""

    def __init__(self, socket_path: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{socket_path}", options=_OPTIONS)
        self._stub: dataplane_pb2_grpc.DataplaneServiceAsyncStub = dataplane_pb2_grpc.DataplaneServiceStub(
            self._channel
        )

    async def close(self) -> None:
        """Close the channel; calls under way end."""
        await self._channel.close()

    async def get_plan(self, seconds: float = CALL_SECONDS) -> Served:
        """The plan that is served; waits up to `seconds` for a dataplane that is not there yet."""
        try:
            answer = await self._stub.GetPlan(
                dataplane_pb2.GetPlanRequest(), timeout=seconds, wait_for_ready=True
            )
            if not answer.HasField("plan"):
                return Served(None, 0)
            plan = plan_from_message(answer.plan)
            return Served(plan, answer.plan.sequence, settled=not answer.unsettled)
        except grpc.aio.AioRpcError as error:
            raise _failure("GetPlan", error) from error
        except PlanError as error:
            raise DataplaneError(str(error), refused=True) from error

    async def apply_plan(self, plan: GatewayPlan, sequence: int, allow_cluster_change: bool) -> None:
        """Give the dataplane a plan; returning means that it serves it."""
        request = dataplane_pb2.ApplyPlanRequest(
            plan=plan_to_message(plan, sequence), allow_cluster_change=allow_cluster_change
        )
        try:
            await self._stub.ApplyPlan(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _failure("ApplyPlan", error) from error

    async def get_status(self) -> dataplane_pb2.GetStatusResponse:
        """The dataplane's own view of its cards."""
        try:
            return await self._stub.GetStatus(dataplane_pb2.GetStatusRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise _failure("GetStatus", error) from error

    async def disconnected(self) -> None:
        """Return when the connection is lost; a dataplane that is started again has no plan."""
        while (state := self._channel.get_state()) is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)


_NOT_THERE = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


def _failure(call: str, error: grpc.aio.AioRpcError) -> DataplaneError:
    code = error.code()
    text = f"{call}: {code.name.lower()}: {error.details()}"
    return DataplaneError(text, refused=code not in _NOT_THERE)
