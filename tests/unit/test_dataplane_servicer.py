"""DataplaneService over an engine that is late, or fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import grpc
import pytest
from akv.v1 import dataplane_pb2, dataplane_pb2_grpc, plan_pb2

from controlplane.base.backoff import Backoff
from controlplane.gateway.dataplane import DataplaneClient
from controlplane.gateway.messages import plan_to_message
from controlplane.gateway.pusher import PlanPusher
from dataplane._native import Engine
from dataplane.servicer import DataplaneServicer
from tests.support.gateway_plans import a_plan, running
from tests.support.procs import PATIENCE


class SlowEngine:
    """Serves each plan when the test lets it, or fails with what the test sets."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.failure: Exception | None = None

    def apply_plan(self, *, sequence: int, **_: object) -> bool:
        assert self.may_go_on.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure
        self.sequences.append(sequence)
        return True

    def status(self) -> list[object]:
        return []

    def counters(self) -> dict[str, int]:
        return {}


class Service:
    """The service on a socket, and calls to it."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self.engine = SlowEngine()
        self.servicer = DataplaneServicer(cast(Engine, self.engine), "kv-memory", "test")
        self._channel = grpc.aio.insecure_channel(
            f"unix:{socket}", options=(("grpc.default_authority", "localhost"),)
        )
        self._stub: dataplane_pb2_grpc.DataplaneServiceAsyncStub = dataplane_pb2_grpc.DataplaneServiceStub(
            self._channel
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = grpc.aio.server()
        dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(self.servicer, server)
        server.add_insecure_port(f"unix:{self.socket}")
        await server.start()
        try:
            yield
        finally:
            self.engine.may_go_on.set()
            await self._channel.close()
            await server.stop(None)
            await self.servicer.close()

    async def apply(self, plan: plan_pb2.Plan, seconds: float = PATIENCE) -> bool:
        request = dataplane_pb2.ApplyPlanRequest(plan=plan)
        return (await self._stub.ApplyPlan(request, timeout=seconds)).changed

    async def plan(self) -> tuple[int, bool]:
        """Sequence number of what GetPlan answers, and whether it is settled."""
        answer = await self._stub.GetPlan(dataplane_pb2.GetPlanRequest(), timeout=PATIENCE)
        return answer.plan.sequence, not answer.unsettled

    async def served_sequence(self) -> int:
        """As the status tells it."""
        answer = await self._stub.GetStatus(dataplane_pb2.GetStatusRequest(), timeout=PATIENCE)
        return answer.plan_sequence


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path / "d.sock")
    async with made.running():
        yield made


A, B = plan_to_message(a_plan("a"), 1), plan_to_message(a_plan("a", "b"), 2)


async def test_a_plan_that_is_late_is_not_denied(service: Service) -> None:
    """The engine serves it once it can, though the control process has stopped waiting."""
    assert await service.apply(A)
    service.engine.may_go_on.clear()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.apply(B, seconds=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await service.plan() == (2, False)
    assert await service.served_sequence() == 0
    service.engine.may_go_on.set()
    assert not await service.apply(B)  # waits for its turn; it is served by then
    assert await service.plan() == (2, True)
    assert await service.served_sequence() == 2
    assert service.engine.sequences == [1, 2]


async def test_the_plan_before_a_late_one_is_pushed_again(service: Service) -> None:
    """As when a card was sick for a moment, and the plan without it is late."""
    assert await service.apply(A)
    service.engine.may_go_on.clear()
    with pytest.raises(grpc.aio.AioRpcError):
        await service.apply(B, seconds=0.1)
    client = DataplaneClient(service.socket)
    pusher = PlanPusher(client, Backoff(0.01, 0.1))
    pusher.want(a_plan("a"))
    try:
        async with running(pusher), asyncio.timeout(PATIENCE):
            service.engine.may_go_on.set()
            while await service.plan() != (3, True):
                pass
    finally:
        await client.close()
    assert service.engine.sequences == [1, 2, 3]


async def test_after_a_failure_the_same_plan_is_applied_again(service: Service) -> None:
    assert await service.apply(A)
    service.engine.failure = RuntimeError("a worker did not answer in time")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.apply(B)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "a worker did not answer in time",
    )
    assert await service.plan() == (2, False)
    service.engine.failure = None
    assert await service.apply(B)
    assert await service.plan() == (2, True)
    assert not await service.apply(B)
    assert service.engine.sequences == [1, 2]


async def test_a_plan_that_the_engine_refuses_changes_nothing(service: Service) -> None:
    assert await service.apply(A)
    service.engine.failure = ValueError("slots[0]: no")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.apply(B)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await service.plan() == (1, True)
    assert await service.served_sequence() == 1
