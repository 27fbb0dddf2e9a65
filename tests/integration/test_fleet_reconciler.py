"""Placement over real gRPC and a real etcd: starts, crashes, drains, refusals, and changes of the leader."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base.pki import Role
from controlplane.fleet import commands, life, reconciler, setbacks
from controlplane.fleet.forwarding import insecure_channel
from controlplane.fleet.liveness import Limits, NodeState
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, RunningAgent, SimAgent, leading, secure_channel
from tests.support.pki import TestAuthority
from tests.support.waiting import eventually

QUICK_RETRY = 0.3


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts after fractions of a second; how the delay grows is tested where it is computed.

    And no plan is made for want of something better to do: whatever happens has to ask for its own.
    """
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", QUICK_RETRY)
    monkeypatch.setattr(reconciler, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(reconciler, "QUIET_SECONDS", 3600.0)


@pytest_asyncio.fixture
async def host(etcd: EtcdCluster) -> AsyncIterator[FleetHost]:
    async with leading(etcd) as leader:
        yield leader


def agent_of(host: FleetHost, node: str = "gpu-1", **fields: Any) -> RunningAgent:
    return RunningAgent(node, insecure_channel(host.api), **{"gpus": 2, **fields})


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


async def test_a_start_that_is_refused_is_tried_again_and_says_why(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 2.0)  # long enough to see the failure
    async with agent_of(host) as agent:
        refusals = 0
        obey = agent.on_message

        async def refuse(message: pb.LeaderMessage) -> None:
            nonlocal refusals
            if message.HasField("start_shard") and refusals < 1:
                refusals += 1
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


async def test_what_keeps_failing_on_one_node_runs_on_another_and_the_next_leader_knows(
    host: FleetHost, etcd: EtcdCluster
) -> None:
    async with agent_of(host, gpus=1) as bad, agent_of(host, "gpu-2") as good:
        await bad.connect()
        await bad.hear("ack")
        await good.connect()
        await good.hear("ack")
        bad.hold_starts = True
        await apply(host, model())
        for number in range(1, 4):
            await eventually(lambda n=number: len(bad.starts) == n, f"start {number} came", SECONDS)  # type: ignore[misc]
            await bad.crash("m-0-0")
        moved = await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="gpu-2", failures=0)
        assert moved.reason == "moved here, it kept failing on gpu-1"
        assert moved.generation > bad.starts[-1].generation
        assert len(bad.starts) == 3
        for number in range(1, 3):
            await good.crash("m-0-0")
            await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, failures=number)
        await forgets_nothing(host, etcd, good)


async def forgets_nothing(host: FleetHost, etcd: EtcdCluster, good: RunningAgent) -> None:
    """The next leader knows the node that was left, and the failures in a row on the present one."""
    other = await new_leader(host, etcd)
    try:
        avoided = other.term.reconciler.setbacks["m/0"]
        assert list(avoided) == ["gpu-1"]
        assert 0 < avoided["gpu-1"] - other.term.clock() <= setbacks.AVOID_SECONDS
        async with agent_of(other, "gpu-2", gpus=1, sequence=good.sequence) as again:
            again.shards = good.shards
            await again.connect()
            adopted = await until(other, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="gpu-2", failures=2)
            assert adopted.reason == "moved here, it kept failing on gpu-1"
    finally:
        await other.stop()


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


async def new_leader(host: FleetHost, etcd: EtcdCluster, name: str = "host-2", **fields: Any) -> FleetHost:
    """Another host that leads after this one."""
    other = FleetHost(name, insecure=True, **fields)
    await other.start()
    await host.resign(other)
    await other.lead(etcd.endpoints[0])
    return other


async def test_a_new_leader_adopts_what_runs_and_starts_nothing_twice(
    host: FleetHost, etcd: EtcdCluster
) -> None:
    async with agent_of(host, "a") as a, agent_of(host, "b") as b:
        await a.connect()
        await b.connect()
        await apply(host, model(replicas=2))
        before = [await until(host, f"m-{n}-0", pb.SHARD_STATE_RUNNING) for n in (0, 1)]
        other = await new_leader(host, etcd)
        try:
            await eventually(
                lambda: "waits for a, b" in other.term.reconciler.waiting, "it waits for both", SECONDS
            )
            moved = []
            for old in (a, b):
                agent = agent_of(other, old.node_id, sequence=old.sequence)
                agent.shards = old.shards
                await agent.connect()
                moved.append(agent)
            after = [await until(other, f"m-{n}-0", pb.SHARD_STATE_RUNNING) for n in (0, 1)]
            await eventually(lambda: other.term.reconciler.waiting == "", "it places", SECONDS)
            assert [s.generation for s in after] == [s.generation for s in before]
            assert [s.node_id for s in after] == [s.node_id for s in before]
            for agent in moved:
                assert agent.starts == []
                assert agent.of_kind("stop_shard") == []
                await agent.close()
        finally:
            await other.stop()


async def test_a_leader_change_in_the_middle_of_a_start(host: FleetHost, etcd: EtcdCluster) -> None:
    """The shard that was started goes on; the one whose start never came to its node is started anew."""
    async with agent_of(host) as agent:
        agent.hold_starts = True
        await agent.connect()
        await apply(host, model(replicas=2))
        for shard in ("m-0-0", "m-1-0"):
            await until(host, shard, pb.SHARD_STATE_STARTING)
        await eventually(lambda: len(agent.shards) == 2, "both are told", SECONDS)
        del agent.shards["m-1-0"]
        other = await new_leader(host, etcd)
        try:
            async with agent_of(other, sequence=agent.sequence) as again:
                again.shards = agent.shards
                again.hold_starts = True
                await again.connect()
                await eventually(lambda: len(again.starts) == 1, "one is started anew", SECONDS)
                assert again.starts[0].shard_id == "m-1-0"
                assert again.starts[0].generation > agent.starts[1].generation
                await again.serve("m-0-0")
                await again.serve("m-1-0")
                for shard in ("m-0-0", "m-1-0"):
                    await until(other, shard, pb.SHARD_STATE_RUNNING)
                assert len(again.starts) == 1
        finally:
            await other.stop()


async def test_a_new_leader_acts_after_its_grace_when_a_node_does_not_come(
    host: FleetHost, etcd: EtcdCluster
) -> None:
    async with agent_of(host, "a") as a, agent_of(host, "b") as b:
        await a.connect()
        await b.connect()
        await eventually(lambda: len(host.term.ledger.records.nodes) == 2, "both are known", SECONDS)
        limits = Limits(heartbeat=0.5, suspect=60.0, lost=600.0, grace=1.5)
        began = time.monotonic()
        other = await new_leader(host, etcd, limits=limits)
        try:
            async with agent_of(other, "a", sequence=a.sequence) as again:
                await again.connect()
                await apply(other, model())
                await again.hear("start_shard")
                assert time.monotonic() - began >= limits.grace
                await until(other, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="a")
                assert other.term.inventory.nodes["b"].state is NodeState.EXPECTED
        finally:
            await other.stop()


async def test_a_standby_hands_calls_to_the_leader_over_tls(tmp_path: Path, etcd: EtcdCluster) -> None:
    authority = TestAuthority(tmp_path)
    leader = FleetHost("host-1", authority.issue(Role.HOST, "host-1"))
    standby = FleetHost("host-2", authority.issue(Role.HOST, "host-2"))
    await leader.start()
    await standby.start()
    admin = authority.issue(Role.ADMIN, "olga")
    node = authority.issue(Role.AGENT, "gpu-1")
    try:
        async with standby.operator(admin) as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="no host leads"):
                await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
        await leader.lead(etcd.endpoints[0])
        standby.follow(leader)
        await eventually(standby.knows_leader, "it knows who leads")
        async with SimAgent("gpu-1", secure_channel(leader.api, node)) as agent:
            await agent.connect()
            await agent.hear("ack")
            async with standby.operator(admin) as stub:
                answer = await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
                assert (answer.leader, [n.node_id for n in answer.nodes]) == ("host-1", ["gpu-1"])
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.GetNode(fleet_pb2.GetNodeRequest(node_id="x"), timeout=SECONDS)
                assert caught.value.code() is grpc.StatusCode.NOT_FOUND
                assert dict(caught.value.trailing_metadata() or ())["awide-host"] == "host-1"
            async with leader.operator(node) as stub:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await standby.stop()
        await leader.stop()


async def test_two_hosts_that_take_each_other_for_the_leader_do_not_pass_calls_to_and_fro() -> None:
    one, two = FleetHost("host-1", insecure=True), FleetHost("host-2", insecure=True)
    await one.start()
    await two.start()
    try:
        one.follow(two)
        two.follow(one)
        for host in (one, two):
            await eventually(host.knows_leader, "both believe it")
        async with one.operator() as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="host-2 does not lead"):
                await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
    finally:
        await one.stop()
        await two.stop()


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
