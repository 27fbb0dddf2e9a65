"""The agents' stream over real gRPC: who is let in, in what order, and what a bad end can do to it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import grpc
import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.base.request_errors import Overrun, Unavailable
from controlplane.fleet import stream
from controlplane.fleet.liveness import Limits, NodeState
from controlplane.store.fleet_records import EngineWanted
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, SimAgent, leading
from tests.support.fleet_scene import ending
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

# Where silence is not what is to end a stream.
NEVER_LOST = Limits(lost=1e9)


async def test_an_agent_registers_and_is_acknowledged(host: FleetHost) -> None:
    async with host.agent(gpus=2) as agent:
        await agent.connect()
        ack = await agent.hear("ack")
        assert (ack.leader, ack.heartbeat_seconds) == ("host-1", 5.0)
        assert host.term.inventory.nodes["gpu-1"].state is NodeState.READY
        assert list((await agent.hear("provision")).engines) == []


async def test_a_standby_refuses_before_anything_is_said_and_names_the_leader(host: FleetHost) -> None:
    standby = FleetHost("host-2")
    await standby.start()
    standby.follow(host)
    await eventually(standby.knows_leader, "the standby knows who leads")
    try:
        async with standby.agent() as agent:
            agent.open()
            code, words = await ending(agent)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert host.api in words
            assert await agent.leader_hint() == host.api
    finally:
        await standby.stop()


async def test_a_host_that_knows_no_leader_says_so() -> None:
    host = FleetHost("host-1")
    await host.start()
    try:
        async with host.agent() as agent:
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
    host: FleetHost, first: dict[str, object], why: str
) -> None:
    async with host.agent() as agent:
        agent.open()
        await agent.say(**first)  # type: ignore[arg-type]
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert why in words
        assert "gpu-1" not in host.term.inventory.nodes


async def test_a_stream_that_ends_before_it_says_anything_is_an_invalid_argument(host: FleetHost) -> None:
    async with host.agent() as agent:
        agent.open()
        await agent.call.done_writing()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "no opening message" in words


async def test_provision_follows_the_ack_with_what_the_node_can_install(host: FleetHost) -> None:
    engines = (EngineWanted("llamacpp", "b1"), EngineWanted("vllm", "0.11", "cuda"))
    await host.term.ledger.put_engines(engines)
    async with host.agent("old") as old, host.agent("new") as new:
        await old.connect()
        await new.connect(installable_engines=["vllm", "sglang"])
        assert [e.engine for e in (await old.hear("provision")).engines] == ["llamacpp"]
        wanted = (await new.hear("provision")).engines
        assert [(e.engine, e.version, e.variant) for e in wanted] == [("vllm", "0.11", "cuda")]
        for agent in (old, new):
            assert [m.WhichOneof("message") for m in agent.heard] == ["ack", "provision"]


async def test_an_unclaimed_shard_is_told_to_stop(host: FleetHost) -> None:
    async with host.agent() as agent:
        stray = pb.RunningShard(shard_id="x-0-0", generation=3, state=pb.SHARD_STATE_RUNNING)
        await agent.connect(running_shards=[stray])
        stop = await agent.hear("stop_shard")
        assert (stop.shard_id, stop.generation) == ("x-0-0", 3)
        assert [m.WhichOneof("message") for m in agent.heard] == ["ack", "provision", "stop_shard"]


async def test_a_reconnect_replaces_the_stream_and_the_old_ones_end_leaves_the_new(
    host: FleetHost,
) -> None:
    async with host.agent() as old, host.agent() as new:
        await old.connect()
        await old.hear("ack")
        new.sequence = old.sequence
        await new.connect()
        await new.hear("ack")
        code, words = await ending(old)
        assert code is grpc.StatusCode.ABORTED
        assert "newer stream" in words
        connections = host.term.connections
        assert connections.nodes() == ["gpu-1"]
        connections.send("gpu-1", pb.LeaderMessage(stop_shard=pb.StopShard(shard_id="a")))
        assert (await new.hear("stop_shard")).shard_id == "a"


async def test_losing_a_stream_is_not_losing_a_node(host: FleetHost) -> None:
    term = host.term
    async with host.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.drop()
        await eventually(lambda: term.connections.nodes() == [], "the stream is gone")
        assert term.inventory.nodes["gpu-1"].state is NodeState.READY


async def test_of_two_agents_with_one_name_the_newer_stays(host: FleetHost) -> None:
    async with host.agent(incarnation=5) as newer, host.agent(incarnation=4) as older:
        await newer.connect()
        await newer.hear("ack")
        await older.connect()
        code, words = await ending(older)
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert "incarnation 5" in words
        assert "second agent" in words
        assert not newer.ended.is_set()


async def test_the_older_of_two_agents_is_fenced_when_the_newer_comes(host: FleetHost) -> None:
    async with host.agent(incarnation=4) as older, host.agent(incarnation=5) as newer:
        await older.connect()
        await older.hear("ack")
        await newer.connect()
        await newer.hear("ack")
        await ending(older)
        await older.connect()
        assert (await ending(older))[0] is grpc.StatusCode.ALREADY_EXISTS
        assert host.term.inventory.nodes["gpu-1"].gate.incarnation == 5


async def test_duplicates_and_stragglers_change_nothing(host: FleetHost) -> None:
    async with host.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        node = host.term.inventory.nodes
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


async def test_fields_and_messages_of_a_later_version_are_ignored(host: FleetHost) -> None:
    async with host.agent() as agent:
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
        node = host.term.inventory.nodes["gpu-1"]
        await eventually(lambda: node.facts is not None and node.facts.load is not None, "it goes on")
        assert node.facts is not None
        assert node.facts.memory_total == 77


async def test_an_oversized_message_ends_its_own_stream_only(host: FleetHost) -> None:
    async with host.agent("gpu-1") as big, host.agent("gpu-2") as other:
        await big.connect()
        await other.connect()
        await big.hear("ack")
        await big.say(logs_answer=pb.LogsAnswer(request_id="x", lines=["y" * (5 << 20)]))
        code, words = await ending(big)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in words
        await eventually(lambda: host.term.connections.nodes() == ["gpu-2"], "only one is gone")
        await other.hear("ack")
        assert not other.ended.is_set()


async def test_another_node_can_not_register_on_an_open_stream(host: FleetHost) -> None:
    async with host.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.say(register=pb.Register(node_id="gpu-2", incarnation=1))
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "gpu-2" in words


# Larger than what flow control lets through before the agent reads.
COMMAND = pb.LeaderMessage(start_shard=pb.StartShard(shard_id="a", arguments=["x" * (64 << 10)]))


async def stall(host: FleetHost, agent: SimAgent) -> None:
    """Send to an agent that does not read until its queue is full."""
    await agent.connect(read=False)
    connections = host.term.connections
    await eventually(lambda: connections.is_open(agent.node_id), "it is connected", SECONDS)

    async def send_on() -> None:
        for _ in range(4000):
            connections.send(agent.node_id, COMMAND)
            await asyncio.sleep(0)

    with pytest.raises(Overrun, match=f"^node {agent.node_id} is not keeping up with commands$"):
        await send_on()
    assert connections.get(agent.node_id).outbox.qsize() == 64


async def give_up(host: FleetHost, clock: ManualClock, node_id: str) -> None:
    """Let time pass until the leader waits for the node no more."""
    connections = host.term.connections

    def given_up() -> bool:
        # Its queue was full once, and there may have been room for all of it on the way.
        with contextlib.suppress(Overrun, Unavailable):
            connections.send(node_id, COMMAND)
        clock.now += 1
        host.term.wake.set()
        return not connections.is_open(node_id)

    await eventually(given_up, f"the stream of {node_id} is ended", SECONDS)


async def test_a_slow_reader_fills_its_queue_and_nobody_elses_and_loses_its_stream(etcd: EtcdCluster) -> None:
    clock = ManualClock()
    async with (
        leading(etcd, clock=clock, limits=NEVER_LOST) as host,
        host.agent("slow") as slow,
        host.agent("quick") as quick,
    ):
        await quick.connect()
        await stall(host, slow)
        connections = host.term.connections
        connections.send("quick", pb.LeaderMessage(stop_shard=pb.StopShard(shard_id="b")))
        assert (await quick.hear("stop_shard")).shard_id == "b"
        await give_up(host, clock, "slow")
        slow.listen()  # what was sent before comes first
        code, words = await ending(slow)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert words == "node slow has read no command for 30 s"
        assert not quick.ended.is_set()


async def test_who_does_not_even_read_the_end_of_its_stream_loses_the_connection(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers pings, and its stream's status would wait behind the messages for ever."""
    monkeypatch.setattr(stream, "END_SECONDS", 0.2)
    clock = ManualClock()
    async with (
        leading(etcd, clock=clock, limits=NEVER_LOST) as host,
        host.agent("deaf") as deaf,
        host.agent("quick") as quick,
    ):
        await quick.connect()
        await quick.hear("ack")
        alone = handlers()
        await stall(host, deaf)
        assert handlers() > alone
        await give_up(host, clock, "deaf")
        await eventually(lambda: handlers() == alone, "nothing of it is left", SECONDS)
        deaf.listen()
        assert (await ending(deaf))[0] is grpc.StatusCode.UNAVAILABLE
        connections = host.term.connections
        connections.send("quick", pb.LeaderMessage(stop_shard=pb.StopShard(shard_id="b")))
        assert (await quick.hear("stop_shard")).shard_id == "b"
    logged = capsys.readouterr().out
    for event in ("agent takes no commands", "agent's connection closed, it reads nothing"):
        assert logged.count(event) == 1
    assert "node deaf has read no command for 30 s" in logged


def handlers() -> int:
    """Tasks of gRPC's server for streams, and of ours."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return sum(
        name == "rpc_task" or "Connect" in name or name.startswith(("read-", "write-")) for name in names
    )


async def test_who_says_nothing_is_not_waited_for(host: FleetHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REGISTER_SECONDS", 0.3)
    async with host.agent() as agent:
        agent.open()
        code, words = await ending(agent)
        assert (code, words) == (grpc.StatusCode.INVALID_ARGUMENT, "no opening message within 0.3 s")


async def test_a_command_to_a_node_without_a_stream_is_refused(host: FleetHost) -> None:
    with pytest.raises(Unavailable, match="no agent connected: node nowhere"):
        host.term.connections.send("nowhere", pb.LeaderMessage())


async def test_the_stream_of_a_revoked_name_ends(host: FleetHost) -> None:
    async with host.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        standing = host.standing
        host.standing = replace(standing, revoked=frozenset({agent.node_id, "nobody"}))
        try:
            code, words = await ending(agent)
        finally:
            host.standing = standing
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "revoked" in words


async def test_streams_end_when_the_leadership_does(host: FleetHost) -> None:
    other = FleetHost("host-2")
    await other.start()
    try:
        async with host.agent() as agent:
            await agent.connect()
            await agent.hear("ack")
            await host.resign(other)
            code, words = await ending(agent)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert other.api in words
            assert await agent.leader_hint() == other.api
    finally:
        await other.stop()


async def test_who_registers_only_after_the_leadership_is_lost_is_not_taken(host: FleetHost) -> None:
    """Nobody would end its stream, and it would take the host for the leader for ever."""
    other = FleetHost("host-2")
    await other.start()
    try:
        alone, term = handlers(), host.term
        async with host.agent() as agent:
            agent.open()
            await eventually(lambda: handlers() > alone, "the host waits for its Register", SECONDS)
            await host.resign(other)
            await agent.say(register=agent.description())
            code, words = await ending(agent)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert words == f"this host is a standby: connect to the leader at {other.api}"
            assert await agent.leader_hint() == other.api
            assert term.connections.nodes() == []
    finally:
        await other.stop()
