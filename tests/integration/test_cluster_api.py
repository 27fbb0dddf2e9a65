"""The server of the cluster API: no call and no stream lasts longer than the host's own deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from akv.v1 import cluster_pb2, cluster_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controlplane.cluster import api
from controlplane.cluster.authorization import Gatekeeper
from tests.support.addresses import LoopbackNet, free_port

LIMIT = 0.3
PATIENCE = 30.0


class NeverDone:
    """Operations that are never done, as behind an etcd that says nothing."""

    def __getattr__(self, name: str) -> Any:
        async def wait(*_: object) -> None:
            await asyncio.Event().wait()

        return wait


@asynccontextmanager
async def serving(net: LoopbackNet) -> AsyncIterator[grpc.aio.Channel]:
    endpoint = f"{net.host(1)}:{free_port(net.host(1))}"
    gatekeeper = Gatekeeper("host-1", frozenset(), secure=False, stream_seconds=LIMIT)
    server = api.ClusterServer(endpoint, "host-1", NeverDone(), gatekeeper)
    await server.start()
    try:
        async with asyncio.timeout(PATIENCE), grpc.aio.insecure_channel(endpoint) as channel:
            yield channel
    finally:
        await server.stop()


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call without a deadline of its own ends, and why."""
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call
    assert dict(ended.value.trailing_metadata() or ())["awide-host"] == "host-1"
    return ended.value.code(), ended.value.details() or ""


async def test_calls_end_by_the_servers_deadline(
    loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("READ_SECONDS", "JOIN_SECONDS", "CHANGE_SECONDS"):
        monkeypatch.setattr(api, name, LIMIT)
    async with serving(loopback_net) as channel:
        stub: cluster_pb2_grpc.ClusterServiceAsyncStub = cluster_pb2_grpc.ClusterServiceStub(channel)
        methods = cluster_pb2.DESCRIPTOR.services_by_name["ClusterService"].methods
        calls = [getattr(stub, m.name)(getattr(cluster_pb2, m.input_type.name)()) for m in methods]
        ends = await asyncio.gather(*map(code_of, calls))
    assert len(ends) == 6
    assert {code for code, _ in ends} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert all("ask again" in words for _, words in ends)


async def test_streams_end_by_the_servers_deadline(loopback_net: LoopbackNet) -> None:
    async def watch(channel: grpc.aio.Channel) -> None:
        stub: health_pb2_grpc.HealthAsyncStub = health_pb2_grpc.HealthStub(channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    async def reflect(channel: grpc.aio.Channel) -> None:
        async def questions() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            await asyncio.Event().wait()

        async for answer in reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            questions()
        ):
            assert answer.list_services_response.service

    async with serving(loopback_net) as channel:
        ends = await asyncio.gather(code_of(watch(channel)), code_of(reflect(channel)))
    assert {code for code, _ in ends} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert all("begin a new one" in words for _, words in ends)
