"""The agents' stream over real gRPC: who is let in, in what order, and what a bad end can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from akv.v1 import agent_pb2 as pb

from controlplane.base.pki import Role
from controlplane.base.request_errors import Overrun, Unavailable
from controlplane.fleet import stream
from controlplane.fleet.forwarding import insecure_channel
from controlplane.fleet.liveness import NodeState
from controlplane.store.fleet_records import EngineWanted
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, SimAgent, secure_channel
from tests.support.fleet_scene import SecureScene, ending, secure_scene
from tests.support.waiting import eventually


@pytest_asyncio.fixture
async def scene(tmp_path: Path, etcd: EtcdCluster) -> AsyncIterator[SecureScene]:
    async with secure_scene(tmp_path, etcd) as made:
        yield made


async def test_an_agent_registers_and_is_acknowledged(scene: SecureScene) -> None:
    async with scene.agent(gpus=2) as agent:
        await agent.connect()
        ack = await agent.hear("ack")
        assert (ack.leader, ack.heartbeat_seconds) == ("host-1", 5.0)
        assert scene.host.term.inventory.nodes["gpu-1"].state is NodeState.READY
        assert agent.of_kind("provision") == []


async def test_a_standby_refuses_before_anything_is_said_and_names_the_leader(scene: SecureScene) -> None:
    standby = FleetHost("host-2", scene.authority.issue(Role.HOST, "host-2"))
    await standby.start()
    standby.follow(scene.host)
    await eventually(standby.knows_leader, "the standby knows who leads")
    files = scene.authority.issue(Role.AGENT, "gpu-1")
    try:
        async with SimAgent("gpu-1", secure_channel(standby.api, files)) as agent:
            agent.open()
            code, words = await ending(agent)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert scene.host.api in words
            assert await agent.leader_hint() == scene.host.api
    finally:
        await standby.stop()


async def test_a_host_that_knows_no_leader_says_so(tmp_path: Path) -> None:
    host = FleetHost("host-1", insecure=True)
    await host.start()
    try:
        async with SimAgent("gpu-1", insecure_channel(host.api)) as agent:
            agent.open()
            code, words = await ending(agent)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "no leader is known" in words
            assert await agent.leader_hint() == ""
    finally:
        await host.stop()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ({"heartbeat": pb.Heartbeat()}, "first message of an agent's stream must be a Register"),
        ({"register": pb.Register(incarnation=1)}, "node_id is required"),
        ({"register": pb.Register(node_id="gpu-1")}, "incarnation is required"),
        ({"register": pb.Register(node_id="../x", incarnation=1)}, "not a node name"),
        (
            {"register": pb.Register(node_id="gpu-1", incarnation=1, gpus=[pb.Gpu(uuid="a")] * 2)},
            "there more than once",
        ),
        ({"register": pb.Register(node_id="gpu-1", incarnation=1), "sequence": 0}, "numbered from 1"),
    ],
)
async def test_a_wrong_first_message_is_an_invalid_argument(
    scene: SecureScene, first: dict[str, object], why: str
) -> None:
    async with scene.agent() as agent:
        agent.open()
        await agent.say(**first)  # type: ignore[arg-type]
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert why in words
        assert "gpu-1" not in scene.host.term.inventory.nodes


async def test_a_stream_that_ends_before_it_says_anything_is_an_invalid_argument(scene: SecureScene) -> None:
    async with scene.agent() as agent:
        agent.open()
        await agent.call.done_writing()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "no opening message" in words


async def test_provision_follows_the_ack_with_what_the_node_can_install(scene: SecureScene) -> None:
    engines = (EngineWanted("llamacpp", "b1"), EngineWanted("vllm", "0.11", "cuda"))
    await scene.host.term.ledger.put_engines(engines)
    async with scene.agent("old") as old, scene.agent("new") as new:
        await old.connect()
        await new.connect(installable_engines=["vllm", "sglang"])
        assert [e.engine for e in (await old.hear("provision")).engines] == ["llamacpp"]
        wanted = (await new.hear("provision")).engines
        assert [(e.engine, e.version, e.variant) for e in wanted] == [("vllm", "0.11", "cuda")]
        for agent in (old, new):
            assert [m.WhichOneof("message") for m in agent.heard] == ["ack", "provision"]


async def test_an_unclaimed_shard_is_told_to_stop(scene: SecureScene) -> None:
    async with scene.agent() as agent:
        stray = pb.RunningShard(shard_id="x-0-0", generation=3, state=pb.SHARD_STATE_RUNNING)
        await agent.connect(running_shards=[stray])
        stop = await agent.hear("stop_shard")
        assert (stop.shard_id, stop.generation) == ("x-0-0", 3)
        assert [m.WhichOneof("message") for m in agent.heard] == ["ack", "stop_shard"]


async def test_a_reconnect_replaces_the_stream_and_the_old_ones_end_leaves_the_new(
    scene: SecureScene,
) -> None:
    async with scene.agent() as old, scene.agent() as new:
        await old.connect()
        await old.hear("ack")
        new.sequence = old.sequence
        await new.connect()
        await new.hear("ack")
        code, words = await ending(old)
        assert code is grpc.StatusCode.ABORTED
        assert "newer stream" in words
        connections = scene.host.term.connections
        assert connections.nodes() == ["gpu-1"]
        connections.send("gpu-1", pb.LeaderMessage(stop_shard=pb.StopShard(shard_id="a")))
        assert (await new.hear("stop_shard")).shard_id == "a"


async def test_losing_a_stream_is_not_losing_a_node(scene: SecureScene) -> None:
    term = scene.host.term
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.drop()
        await eventually(lambda: term.connections.nodes() == [], "the stream is gone")
        assert term.inventory.nodes["gpu-1"].state is NodeState.READY


async def test_of_two_agents_with_one_name_the_newer_stays(scene: SecureScene) -> None:
    async with scene.agent(incarnation=5) as newer, scene.agent(incarnation=4) as older:
        await newer.connect()
        await newer.hear("ack")
        await older.connect()
        code, words = await ending(older)
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert "incarnation 5" in words
        assert "second agent" in words
        assert not newer.ended.is_set()


async def test_the_older_of_two_agents_is_fenced_when_the_newer_comes(scene: SecureScene) -> None:
    async with scene.agent(incarnation=4) as older, scene.agent(incarnation=5) as newer:
        await older.connect()
        await older.hear("ack")
        await newer.connect()
        await newer.hear("ack")
        await ending(older)
        await older.connect()
        assert (await ending(older))[0] is grpc.StatusCode.ALREADY_EXISTS
        assert scene.host.term.inventory.nodes["gpu-1"].gate.incarnation == 5


async def test_duplicates_and_stragglers_change_nothing(scene: SecureScene) -> None:
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        node = scene.host.term.inventory.nodes
        for sequence, memory in ((5, 500), (5, 501), (3, 300), (6, 600), (4, 400)):
            await agent.say(sequence=sequence, heartbeat=pb.Heartbeat(memory_total_bytes=memory))
        agent.sequence = 6
        await agent.say(heartbeat=pb.Heartbeat(load=pb.NodeLoad(load1=1)))
        await eventually(lambda: node["gpu-1"].facts.load is not None, "the last heartbeat came")  # type: ignore[union-attr]
        facts = node["gpu-1"].facts
        assert facts is not None
        assert facts.memory_total == 600
        kinds = [e.change.after for e in node["gpu-1"].events if e.change.kind == "memory"]
        assert kinds == ["500", "600"]


async def test_fields_and_messages_of_a_later_version_are_ignored(scene: SecureScene) -> None:
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        later = pb.AgentMessage(sequence=2, heartbeat=pb.Heartbeat(memory_total_bytes=77))
        unknown = bytes([0xFA, 0x3F, 0x03]) + b"abc"  # field 1023, length-delimited
        await agent.call.write(pb.AgentMessage.FromString(later.SerializeToString() + unknown))
        await agent.call.write(
            pb.AgentMessage.FromString(pb.AgentMessage(sequence=3).SerializeToString() + unknown)
        )
        agent.sequence = 3
        await agent.say(heartbeat=pb.Heartbeat(load=pb.NodeLoad(load1=1)))
        node = scene.host.term.inventory.nodes["gpu-1"]
        await eventually(lambda: node.facts is not None and node.facts.load is not None, "it goes on")
        assert node.facts is not None
        assert node.facts.memory_total == 77


async def test_an_oversized_message_ends_its_own_stream_only(scene: SecureScene) -> None:
    async with scene.agent("gpu-1") as big, scene.agent("gpu-2") as other:
        await big.connect()
        await other.connect()
        await big.hear("ack")
        await big.say(logs_answer=pb.LogsAnswer(request_id="x", lines=["y" * (5 << 20)]))
        code, _ = await ending(big)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await eventually(lambda: scene.host.term.connections.nodes() == ["gpu-2"], "only one is gone")
        await other.hear("ack")
        assert not other.ended.is_set()


async def test_another_node_can_not_register_on_an_open_stream(scene: SecureScene) -> None:
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.say(register=pb.Register(node_id="gpu-2", incarnation=1))
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "gpu-2" in words


async def test_a_slow_reader_fills_its_queue_and_nobody_elses_and_loses_its_stream(
    scene: SecureScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WRITE_SECONDS", 1.0)
    async with scene.agent("slow") as slow, scene.agent("quick") as quick:
        await slow.connect(read=False)
        await quick.connect()
        connections = scene.host.term.connections
        await eventually(lambda: connections.nodes() == ["quick", "slow"], "both are connected")
        # Larger than what flow control lets through before the agent reads.
        command = pb.LeaderMessage(start_shard=pb.StartShard(shard_id="a", arguments=["x" * (64 << 10)]))
        refused = ""
        for _ in range(4000):
            try:
                connections.send("slow", command)
            except Overrun as error:
                refused = str(error)
                break
            await asyncio.sleep(0)
        assert refused == "node slow is not keeping up with commands"
        assert connections.get("slow").outbox.qsize() == 64
        connections.send("quick", pb.LeaderMessage(stop_shard=pb.StopShard(shard_id="b")))
        assert (await quick.hear("stop_shard")).shard_id == "b"
        await eventually(lambda: connections.nodes() == ["quick"], "the slow one's stream is ended", SECONDS)
        slow.listen()  # what was sent before comes first
        code, words = await ending(slow)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert words == "node slow has read no command for 1 s"


async def test_who_says_nothing_is_not_waited_for(
    scene: SecureScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "REGISTER_SECONDS", 0.3)
    async with scene.agent() as agent:
        agent.open()
        code, words = await ending(agent)
        assert (code, words) == (grpc.StatusCode.INVALID_ARGUMENT, "no opening message within 0.3 s")


async def test_a_command_to_a_node_without_a_stream_is_refused(scene: SecureScene) -> None:
    with pytest.raises(Unavailable, match="no agent connected: node nowhere"):
        scene.host.term.connections.send("nowhere", pb.LeaderMessage())


async def test_the_stream_of_a_revoked_name_ends(scene: SecureScene) -> None:
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        standing = scene.host.standing
        scene.host.standing = replace(standing, revoked=frozenset({agent.node_id, "nobody"}))
        try:
            code, words = await ending(agent)
        finally:
            scene.host.standing = standing
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "revoked" in words


async def test_streams_end_when_the_leadership_does(scene: SecureScene) -> None:
    other = FleetHost("host-2", scene.authority.issue(Role.HOST, "host-2"))
    await other.start()
    try:
        async with scene.agent() as agent:
            await agent.connect()
            await agent.hear("ack")
            await scene.host.resign(other)
            code, words = await ending(agent)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert other.api in words
            assert await agent.leader_hint() == other.api
    finally:
        await other.stop()
