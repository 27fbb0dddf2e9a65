"""Nodes that fall silent, come back, and reconnect without end, over real gRPC and a real etcd."""

from __future__ import annotations

import asyncio
import os

import grpc
import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.fleet.liveness import NodeState
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, SimAgent, leading
from tests.support.fleet_scene import agent_of, apply, model, until
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("quick_planning")


async def beat(host: FleetHost, agent: SimAgent) -> None:
    """A heartbeat that carries nothing, once it was heard."""
    node = host.term.inventory.nodes[agent.node_id]
    await agent.say(heartbeat=pb.Heartbeat())
    await eventually(lambda: node.state is NodeState.READY, f"{agent.node_id} is heard", SECONDS)


async def reaches(host: FleetHost, node_id: str, state: NodeState) -> None:
    node = host.term.inventory.nodes[node_id]
    host.term.wake.set()
    await eventually(lambda: node.state is state, f"{node_id} is {state.value}", SECONDS)


async def loses(host: FleetHost, agent: SimAgent) -> None:
    """The agent's stream is gone, and all that came by it was heard: nothing counts as news of later."""
    await agent.drop()
    connections = host.term.connections
    await eventually(lambda: not connections.is_open(agent.node_id), f"{agent.node_id} is away", SECONDS)


async def serve_and_join(host: FleetHost, server: SimAgent, other: SimAgent) -> None:
    """A model's only shard runs on the first agent, and then the other one joins."""
    await server.connect()
    await apply(host, model())
    await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id=server.node_id)
    await other.connect()
    await other.hear("ack")


async def test_a_lost_nodes_shard_is_placed_elsewhere_and_stopped_when_the_node_returns(
    etcd: EtcdCluster,
) -> None:
    clock = ManualClock()
    async with leading(etcd, clock=clock) as host, agent_of(host, "a") as a, agent_of(host, "b") as b:
        await serve_and_join(host, a, b)
        await loses(host, a)
        clock.now += 15
        await reaches(host, "a", NodeState.SUSPECT)
        await beat(host, b)
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="a")
        clock.now += 105
        await reaches(host, "a", NodeState.LOST)
        await beat(host, b)
        moved = await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="b")
        await a.connect()
        stop = await a.hear("stop_shard")
        assert stop.shard_id == "m-0-0"
        assert stop.generation != moved.generation
        await eventually(lambda: not a.shards, "the old shard is gone", SECONDS)
        assert list(b.shards) == ["m-0-0"]
        kinds = [event.change.kind for event in host.term.inventory.nodes["a"].events]
        assert kinds == ["ready", "registered", "suspect", "lost", "ready", "registered"]


async def test_after_a_look_that_took_long_the_next_one_comes_soon(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with leading(etcd, clock=clock) as host:
        reconciler = host.term.reconciler
        step, looks = reconciler.step, 0

        async def slow() -> bool:
            nonlocal looks
            looks += 1
            clock.now += 15
            return await step()

        monkeypatch.setattr(reconciler, "step", slow)
        await eventually(lambda: looks >= 3, "it looks again", 30.0)


async def test_a_lost_node_whose_stream_is_open_begins_anew_before_it_counts_again(
    etcd: EtcdCluster,
) -> None:
    """A node that hangs answers pings. What it still runs when it goes on is nobody's any more."""
    clock = ManualClock()
    async with leading(etcd, clock=clock) as host, agent_of(host, "a") as a, agent_of(host, "b") as b:
        await serve_and_join(host, a, b)
        for _ in range(2):
            clock.now += 60
            await beat(host, b)
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="b")
        await eventually(a.ended.is_set, "the stream of a is ended", SECONDS)
        code, words = await a.status()
        assert code is grpc.StatusCode.ABORTED
        assert words == "nothing was heard of this node for 120 s: register anew"
        await a.say(heartbeat=pb.Heartbeat())
        await a.connect()
        assert (await a.hear("stop_shard")).shard_id == "m-0-0"
        await eventually(lambda: not a.shards, "the old shard is gone", SECONDS)
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="b")


async def test_a_stray_of_a_node_that_is_away_is_told_to_stop_when_the_node_is_back(
    etcd: EtcdCluster,
) -> None:
    clock = ManualClock()
    stray = pb.RunningShard(shard_id="x-0-0", generation=3, state=pb.SHARD_STATE_RUNNING)
    async with leading(etcd, clock=clock) as host, agent_of(host) as agent:
        agent.on_message = None
        agent.shards["x-0-0"] = stray
        await agent.connect()
        await agent.hear("stop_shard")
        await loses(host, agent)
        awaited = host.term.reconciler._commands
        clock.now += 31
        host.term.wake.set()
        await eventually(lambda: len(awaited) == 0, "nobody waits for it", SECONDS)
        await agent.connect()
        await agent.hear("stop_shard", count=2)
        await loses(host, agent)
        async with host.operator() as stub:
            await stub.ForgetNode(fleet_pb2.ForgetNodeRequest(node_id="gpu-1"), timeout=SECONDS)
        assert host.term.shards.stray("gpu-1", "x-0-0") is None


async def test_a_suspended_agent_gets_nothing_new_and_keeps_what_it_has(etcd: EtcdCluster) -> None:
    """Its stream is open, and nothing comes from it any more."""
    clock = ManualClock()
    async with leading(etcd, clock=clock) as host, agent_of(host) as agent:
        await agent.connect()
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        clock.now += 15
        await reaches(host, "gpu-1", NodeState.SUSPECT)
        await apply(host, model(replicas=2))
        await eventually(
            lambda: "not ready" in host.term.reconciler.unplaced.get("m/1", ""), "it waits", SECONDS
        )
        assert len(agent.starts) == 1
        assert host.term.connections.is_open("gpu-1")
        await beat(host, agent)
        await until(host, "m-1-0", pb.SHARD_STATE_RUNNING)


async def test_a_thousand_reconnects_leave_nothing_behind(host: FleetHost) -> None:
    """Each has a TLS connection of its own, and every fifth goes without a word."""
    connections = host.term.connections

    async def storm(name: str, numbers: range) -> None:
        for number in numbers:
            async with host.agent(name, sequence=number) as agent:
                await agent.connect()
                if number % 5:
                    await agent.hear("ack")

    async def storms(numbers: range) -> None:
        await asyncio.gather(*(storm(f"gpu-{node}", numbers) for node in range(10)))
        await eventually(lambda: connections.nodes() == [], "the streams are gone", SECONDS)

    await storms(range(10))
    tasks, files = len(asyncio.all_tasks()), descriptors()
    await storms(range(10, 110))
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left", SECONDS)
    await eventually(lambda: descriptors() <= files + 2, "no descriptor is left", SECONDS)
    assert len(host.term.requests) == 0
    assert [node.gate.sequence for node in host.term.inventory.nodes.values()] == [110] * 10


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
