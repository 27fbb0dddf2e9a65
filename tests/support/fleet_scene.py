"""The fleet's scenes: what an operator and nodes do on a leader, and what comes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base.pki import Role
from controlplane.fleet import life, reconciler
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, RunningAgent, SimAgent
from tests.support.waiting import eventually

QUICK_RETRY = 0.3


async def ending(agent: SimAgent) -> tuple[grpc.StatusCode, str]:
    """How the agent's stream ends."""
    await eventually(agent.ended.is_set, "the stream ended", SECONDS)
    return await agent.status()


def plan_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts after fractions of a second; how the delay grows is tested where it is computed.

    And no plan is made for want of something better to do: whatever happens has to ask for its own.
    """
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", QUICK_RETRY)
    monkeypatch.setattr(reconciler, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(reconciler, "QUIET_SECONDS", 3600.0)


def agent_of(host: FleetHost, node: str = "gpu-1", **fields: Any) -> RunningAgent:
    return RunningAgent(node, host.channel(Role.AGENT, node), **{"gpus": 2, **fields})


def model(name: str = "m", replicas: int = 1, **profile: Any) -> fleet_pb2.Model:
    base = {"name": "p", "engine": "vllm", "gpus": 1}
    return fleet_pb2.Model(name=name, replicas=replicas, profiles=[fleet_pb2.Profile(**{**base, **profile})])


async def apply(host: FleetHost, spec: fleet_pb2.Model) -> fleet_pb2.ApplyModelResponse:
    async with host.operator() as stub:
        answer: fleet_pb2.ApplyModelResponse = await stub.ApplyModel(
            fleet_pb2.ApplyModelRequest(model=spec), timeout=SECONDS
        )
        return answer


async def shards(host: FleetHost) -> dict[str, fleet_pb2.Shard]:
    async with host.operator() as stub:
        answer = await stub.ListShards(fleet_pb2.ListShardsRequest(), timeout=SECONDS)
        return {shard.shard_id: shard for shard in answer.shards}


async def until(
    host: FleetHost, shard: str, state: pb.ShardState.ValueType, **fields: Any
) -> fleet_pb2.Shard:
    """The shard once it is in this state, and has these values."""
    end = asyncio.get_running_loop().time() + SECONDS
    found: dict[str, fleet_pb2.Shard] = {}
    while asyncio.get_running_loop().time() < end:
        found = await shards(host)
        there = found.get(shard)
        right = there is not None and there.state == state
        if there is not None and right and all(getattr(there, k) == v for k, v in fields.items()):
            return there
        await asyncio.sleep(0.02)
    raise AssertionError(f"{shard} is not {pb.ShardState.Name(state)} {fields}: {found}")


async def new_leader(host: FleetHost, etcd: EtcdCluster, name: str = "host-2", **fields: Any) -> FleetHost:
    """Another host that leads after this one."""
    other = FleetHost(name, host.authority, **fields)
    await other.start()
    await host.resign(other)
    await other.lead(etcd.endpoints[0])
    return other
