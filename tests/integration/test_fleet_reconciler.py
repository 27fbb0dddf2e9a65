"""Placement over real gRPC and a real etcd: starts, crashes, drains, refusals, silent nodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.fleet import commands, life
from controlplane.fleet.forwarding import insecure_channel
from controlplane.fleet.liveness import Limits, NodeState
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, SimAgent, leading
from tests.support.fleet_scene import agent_of, apply, model, quick_planning, until
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_planning(monkeypatch)


@pytest_asyncio.fixture
async def host(etcd: EtcdCluster) -> AsyncIterator[FleetHost]:
    async with leading(etcd) as leader:
        yield leader


async def test_a_model_is_placed_started_and_left_alone(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        await agent.connect()
        assert (await apply(host, model(replicas=2, arguments=["--port", "{port}"]))).changed
        for shard in ("m-0-0", "m-1-0"):
            running = await until(host, shard, pb.SHARD_STATE_RUNNING)
            assert running.address == "127.0.0.1:8000"
        starts = {start.shard_id: start for start in agent.starts}
        assert [*starts["m-0-0"].gpu_uuids, *starts["m-1-0"].gpu_uuids] == ["gpu-1-gpu0", "gpu-1-gpu1"]
        assert list(starts["m-0-0"].arguments) == ["--port", "{port}"]
        assert not (await apply(host, model(replicas=2, arguments=["--port", "{port}"]))).changed
        assert len(agent.starts) == 2


async def test_what_has_no_room_is_told_with_the_reason(host: FleetHost) -> None:
    async with agent_of(host) as agent, host.operator() as stub:
        await agent.connect()
        await apply(host, model(gpus=8))
        unplaced: list[fleet_pb2.Unplaced] = []
        while not unplaced:
            answer = await stub.ListShards(fleet_pb2.ListShardsRequest(), timeout=SECONDS)
            unplaced = list(answer.unplaced)
        assert unplaced[0].replica_id == "m/0"
        assert unplaced[0].reason == "profile p: nodes: 1 with too few free GPUs that fit"


async def test_a_gpu_that_someone_else_uses_is_not_taken(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        await agent.connect()
        await agent.hear("ack")
        used = pb.GpuMemoryReport(gpus=[pb.GpuMemory(index=0, used_bytes=40 << 30)])
        await agent.say(heartbeat=pb.Heartbeat(gpu_memory=used, memory_total_bytes=77))
        nodes = host.term.inventory.nodes
        await eventually(
            lambda: (f := nodes["gpu-1"].facts) is not None and f.memory_total == 77, "it is heard"
        )
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        assert list(agent.starts[0].gpu_uuids) == ["gpu-1-gpu1"]


async def test_progress_is_shown_and_a_crash_is_restarted_with_its_output_kept(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_of(host) as agent:
        agent.hold_starts = True
        await agent.connect()
        await apply(host, model())
        first = await until(host, "m-0-0", pb.SHARD_STATE_STARTING)
        progress = pb.ShardProgress(
            shard_id="m-0-0", generation=first.generation, bytes_done=5, bytes_total=10
        )
        await agent.say(shard_progress=progress)
        await until(host, "m-0-0", pb.SHARD_STATE_STARTING, progress=progress)
        await agent.serve("m-0-0")
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await agent.crash("m-0-0")
        again = await until(host, "m-0-0", pb.SHARD_STATE_STARTING, failures=1)
        assert again.generation > first.generation
        monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 600.0)
        await agent.crash("m-0-0")
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=2)
        assert (failed.exit_code, list(failed.last_output)) == (3, ["Traceback", "boom"])
        assert failed.reason == "exit code 3"


async def test_a_start_that_is_refused_is_tried_again_and_says_why(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        refusing = True  # until it was seen: each refusal makes the pause in which it can be seen longer
        obey = agent.on_message

        async def refuse(message: pb.LeaderMessage) -> None:
            if message.HasField("start_shard") and refusing:
                answer = pb.CommandAnswer(request_id=message.start_shard.request_id, error="no such weights")
                await agent.say(command_answer=answer)
                return
            assert obey is not None
            await obey(message)

        agent.on_message = refuse
        await agent.connect()
        await apply(host, model())
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED)
        assert failed.reason == "its node refused the start: no such weights"
        refusing = False
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)


async def test_a_start_that_its_node_does_not_confirm_is_taken_back(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been taken all the same: the shard has failed only once its node says that it is gone."""
    monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 600.0)
    async with agent_of(host) as agent:
        agent.on_message = None
        await agent.connect()
        await apply(host, model())
        start = await agent.hear("start_shard")
        ending = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=0)
        assert ending.reason == "its node did not confirm the start"
        stop = await agent.hear("stop_shard")
        assert (stop.shard_id, stop.generation) == ("m-0-0", start.generation)
        await agent.say(command_answer=pb.CommandAnswer(request_id=stop.request_id, gone=True))
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=1)
        assert failed.reason == "its node did not confirm the start"
        assert len(agent.of_kind("start_shard")) == 1


async def test_how_a_shard_ended_while_its_node_had_no_stream_is_still_told(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 600.0)
    async with agent_of(host) as agent:
        await agent.connect()
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await agent.drop()
        ended = agent.shards.pop("m-0-0")
        await agent.connect()
        await until(host, "m-0-0", pb.SHARD_STATE_FAILED, reason="its node registered without it")
        await agent.tell(ended, pb.SHARD_STATE_FAILED, error="exit code 7", exit_code=7, last_output=["bye"])
        told = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, reason="exit code 7", exit_code=7)
        assert (told.failures, list(told.last_output)) == (1, ["bye"])


async def test_a_slow_start_is_stopped_and_fails(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        agent.hold_starts = True
        await agent.connect()
        await apply(host, model(start_seconds=1))
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=1)
        assert failed.reason == "did not serve within 1 s of its start"
        assert (await agent.hear("stop_shard")).shard_id == "m-0-0"


async def test_a_model_that_is_stopped_is_drained_first_and_deleted_after(host: FleetHost) -> None:
    async with agent_of(host) as agent, host.operator() as stub:
        await agent.connect()
        await apply(host, model(drain_seconds=7))
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await stub.ScaleModel(fleet_pb2.ScaleModelRequest(name="m", replicas=0), timeout=SECONDS)
        drain = await agent.hear("drain_shard")
        assert (drain.shard_id, drain.seconds) == ("m-0-0", 7.0)
        await eventually(lambda: not host.term.ledger.records.assignments, "its place is free", SECONDS)
        assert agent.of_kind("stop_shard") == []
        await stub.DeleteModel(fleet_pb2.DeleteModelRequest(name="m"), timeout=SECONDS)
        assert (await stub.GetModels(fleet_pb2.GetModelsRequest(), timeout=SECONDS)).models == []


async def test_a_drain_of_nothing_stops_at_once_and_an_agent_that_can_not_drain_is_told_to_stop(
    host: FleetHost,
) -> None:
    async with agent_of(host, features=("logs",)) as agent:
        await agent.connect()
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await apply(host, model(replicas=0))
        await agent.hear("stop_shard")
        assert agent.of_kind("drain_shard") == []


async def test_a_drained_node_is_emptied_and_given_back(host: FleetHost) -> None:
    async with agent_of(host, "a") as a, agent_of(host, "b") as b, host.operator() as stub:
        await a.connect()
        await b.connect()
        await apply(host, model(drain_seconds=0))
        first = await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        answer = await stub.DrainNode(fleet_pb2.DrainNodeRequest(node_id=first.node_id), timeout=SECONDS)
        assert list(answer.shard_ids) == ["m-0-0"]
        other = {"a": "b", "b": "a"}[first.node_id]
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id=other)
        node = await stub.GetNode(fleet_pb2.GetNodeRequest(node_id=first.node_id), timeout=SECONDS)
        assert (node.summary.draining, node.summary.shards, node.summary.gpus_free) == (True, 0, 2)
        await stub.DrainNode(fleet_pb2.DrainNodeRequest(node_id=first.node_id, undo=True), timeout=SECONDS)
        assert not host.term.inventory.nodes[first.node_id].draining


async def test_a_lost_nodes_shard_is_placed_elsewhere_and_stopped_when_the_node_returns(
    etcd: EtcdCluster,
) -> None:
    limits = Limits(heartbeat=0.2, suspect=1.0, lost=3.0, grace=4.0)
    host = FleetHost("host-1", insecure=True, limits=limits)
    await host.start()
    await host.lead(etcd.endpoints[0])
    try:
        async with agent_of(host, "a") as a, agent_of(host, "b") as b:
            await a.connect()
            await apply(host, model())
            await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="a")
            await b.connect()
            beats = asyncio.create_task(beat(b))
            await a.drop()
            moved = await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="b")
            kinds = [event.change.kind for event in host.term.inventory.nodes["a"].events]
            assert kinds[-2:] == ["suspect", "lost"]
            await a.connect()
            stop = await a.hear("stop_shard")
            assert stop.shard_id == "m-0-0"
            assert stop.generation != moved.generation
            await eventually(lambda: not a.shards, "the old shard is gone", SECONDS)
            assert list(b.shards) == ["m-0-0"]
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
    finally:
        await host.stop()


async def beat(agent: SimAgent) -> None:
    """Heartbeats that carry nothing."""
    while True:
        await agent.say(heartbeat=pb.Heartbeat())
        await asyncio.sleep(0.3)


async def test_a_suspended_agent_gets_nothing_new_and_keeps_what_it_has(etcd: EtcdCluster) -> None:
    """Its stream is open, and nothing comes from it any more."""
    limits = Limits(heartbeat=0.5, suspect=1.0, lost=600.0, grace=4.0)
    host = FleetHost("host-1", insecure=True, limits=limits)
    await host.start()
    await host.lead(etcd.endpoints[0])
    try:
        async with agent_of(host) as agent:
            await agent.connect()
            beats = asyncio.create_task(beat(agent))
            await apply(host, model())
            await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
            node = host.term.inventory.nodes["gpu-1"]
            await eventually(lambda: node.state is NodeState.SUSPECT, "the node is suspect", SECONDS)
            await apply(host, model(replicas=2))
            await eventually(
                lambda: "not ready" in host.term.reconciler.unplaced.get("m/1", ""), "it waits", SECONDS
            )
            assert len(agent.starts) == 1
            beats = asyncio.create_task(beat(agent))
            await until(host, "m-1-0", pb.SHARD_STATE_RUNNING)
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
    finally:
        await host.stop()


async def test_a_thousand_reconnects_leave_nothing_behind(host: FleetHost) -> None:
    """No task, stream, request or descriptor stays; every fifth goes without a word."""
    channel = insecure_channel(host.api)
    agent = SimAgent("gpu-1", channel)
    connections = host.term.connections

    async def round_trip(number: int) -> None:
        agent.heard.clear()
        await agent.connect()
        if number % 5:
            await agent.hear("ack")
        await agent.drop()

    try:
        for number in range(50):
            await round_trip(number)
        await eventually(lambda: connections.nodes() == [], "the streams are gone", SECONDS)
        tasks, files = len(asyncio.all_tasks()), descriptors()
        for number in range(1000):
            await round_trip(number)
        await eventually(lambda: connections.nodes() == [], "the streams are gone", SECONDS)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks, "no task is left", SECONDS)
        await eventually(lambda: descriptors() <= files + 2, "no descriptor is left", SECONDS)
        assert len(host.term.requests) == 0
    finally:
        await agent.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
