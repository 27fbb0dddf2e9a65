"""The agents' stream over real gRPC: who is let in, in what order, and what a bad end can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base import pki, tls
from controlplane.base.pki import Role
from controlplane.base.request_errors import Overrun, Unavailable
from controlplane.fleet import stream
from controlplane.fleet.forwarding import insecure_channel
from controlplane.fleet.liveness import NodeState
from controlplane.store.fleet_records import EngineWanted
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, SimAgent, secure_channel
from tests.support.pki import TestAuthority
from tests.support.waiting import eventually


@dataclass
class Scene:
    """A leader with mutual TLS, and the authority behind it."""

    host: FleetHost
    authority: TestAuthority

    def agent(self, node: str = "gpu-1", **fields: object) -> SimAgent:
        files = self.authority.issue(Role.AGENT, node)
        return SimAgent(node, secure_channel(self.host.api, files), **fields)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def scene(tmp_path: Path, etcd: EtcdCluster) -> AsyncIterator[Scene]:
    authority = TestAuthority(tmp_path)
    host = FleetHost("host-1", authority.issue(Role.HOST, "host-1"))
    await host.start()
    await host.lead(etcd.endpoints[0])
    yield Scene(host, authority)
    await host.stop()


async def ending(agent: SimAgent) -> tuple[grpc.StatusCode, str]:
    await eventually(agent.ended.is_set, "the stream ended", SECONDS)
    return await agent.status()


async def test_an_agent_registers_and_is_acknowledged(scene: Scene) -> None:
    async with scene.agent(gpus=2) as agent:
        await agent.connect()
        ack = await agent.hear("ack")
        assert (ack.leader, ack.heartbeat_seconds) == ("host-1", 5.0)
        assert scene.host.term.inventory.nodes["gpu-1"].state is NodeState.READY
        assert agent.of_kind("provision") == []


async def test_a_standby_refuses_before_anything_is_said_and_names_the_leader(scene: Scene) -> None:
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
    scene: Scene, first: dict[str, object], why: str
) -> None:
    async with scene.agent() as agent:
        agent.open()
        await agent.say(**first)  # type: ignore[arg-type]
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert why in words
        assert "gpu-1" not in scene.host.term.inventory.nodes


async def test_a_stream_that_ends_before_it_says_anything_is_an_invalid_argument(scene: Scene) -> None:
    async with scene.agent() as agent:
        agent.open()
        await agent.call.done_writing()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "no opening message" in words


async def test_a_certificate_of_another_node_is_refused_and_both_are_named(scene: Scene) -> None:
    files = scene.authority.issue(Role.AGENT, "gpu-2")
    async with SimAgent("gpu-1", secure_channel(scene.host.api, files)) as agent:
        await agent.connect()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "gpu-2" in words
        assert "gpu-1" in words
        assert "gpu-1" not in scene.host.term.inventory.nodes


@pytest.mark.parametrize("role", [Role.ADMIN, Role.HOST, Role.GATEWAY])
async def test_a_certificate_of_another_role_is_no_agents(scene: Scene, role: Role) -> None:
    files = scene.authority.issue(role, "gpu-1")
    async with SimAgent("gpu-1", secure_channel(scene.host.api, files)) as agent:
        await agent.connect()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert f"{role} gpu-1" in words


async def test_a_certificate_with_alternative_names_alone_is_refused(scene: Scene) -> None:
    key = pki.new_key()
    pem = scene.authority.odd(key.public_key(), pki.Identity(Role.AGENT, "gpu-1"), common_name=False)
    ca = scene.authority.authority.certificate_pem
    credentials = grpc.ssl_channel_credentials(ca, pki.key_pem(key), pem)
    channel = grpc.aio.secure_channel(scene.host.api, credentials, options=list(tls.TLS_OPTIONS))
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "0 common names" in words


async def test_an_agent_without_a_certificate_gets_no_connection(scene: Scene) -> None:
    ca = scene.authority.authority.certificate_pem
    channel = grpc.aio.secure_channel(
        scene.host.api, grpc.ssl_channel_credentials(ca), options=list(tls.TLS_OPTIONS)
    )
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        assert (await ending(agent))[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_ca_gets_no_connection(scene: Scene, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path / "other").issue(Role.AGENT, "gpu-1").load()
    credentials = grpc.ssl_channel_credentials(
        scene.authority.authority.certificate_pem, other.key_pem, other.certificate_pem
    )
    channel = grpc.aio.secure_channel(scene.host.api, credentials, options=list(tls.TLS_OPTIONS))
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        assert (await ending(agent))[0] is grpc.StatusCode.UNAVAILABLE
    assert "gpu-1" not in scene.host.term.inventory.nodes


async def test_an_expired_certificate_gets_no_connection(tmp_path: Path, etcd: EtcdCluster) -> None:
    then = pki.utc_now() - timedelta(days=1, hours=1)
    authority = TestAuthority(tmp_path, pki.create_authority("test", "a-uuid", then))
    host = FleetHost("host-1", authority.issue(Role.HOST, "host-1"))
    await host.start()
    await host.lead(etcd.endpoints[0])
    expired = authority.issue(Role.AGENT, "gpu-1", now=then, days=1).load(lambda: then)
    channel = grpc.aio.secure_channel(
        host.api, tls.channel_credentials(expired), options=list(tls.TLS_OPTIONS)
    )
    try:
        async with SimAgent("gpu-1", channel) as agent:
            await agent.connect()
            assert (await ending(agent))[0] is grpc.StatusCode.UNAVAILABLE
        assert "gpu-1" not in host.term.inventory.nodes
    finally:
        await host.stop()


@pytest.mark.parametrize("insecure", [False, True])
async def test_without_tls_an_agent_is_believed_only_in_the_insecure_mode(
    etcd: EtcdCluster, insecure: bool
) -> None:
    host = FleetHost("host-1", insecure=insecure)
    await host.start()
    await host.lead(etcd.endpoints[0])
    try:
        async with SimAgent("gpu-1", insecure_channel(host.api)) as agent:
            await agent.connect()
            if insecure:
                await agent.hear("ack")
            else:
                assert (await ending(agent))[0] is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await host.stop()


async def test_provision_follows_the_ack_with_what_the_node_can_install(scene: Scene) -> None:
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


async def test_an_unclaimed_shard_is_told_to_stop(scene: Scene) -> None:
    async with scene.agent() as agent:
        stray = pb.RunningShard(shard_id="x-0-0", generation=3, state=pb.SHARD_STATE_RUNNING)
        await agent.connect(running_shards=[stray])
        stop = await agent.hear("stop_shard")
        assert (stop.shard_id, stop.generation) == ("x-0-0", 3)
        assert [m.WhichOneof("message") for m in agent.heard] == ["ack", "stop_shard"]


async def test_a_reconnect_replaces_the_stream_and_the_old_ones_end_leaves_the_new(scene: Scene) -> None:
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


async def test_losing_a_stream_is_not_losing_a_node(scene: Scene) -> None:
    term = scene.host.term
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.drop()
        await eventually(lambda: term.connections.nodes() == [], "the stream is gone")
        assert term.inventory.nodes["gpu-1"].state is NodeState.READY


async def test_of_two_agents_with_one_name_the_newer_stays(scene: Scene) -> None:
    async with scene.agent(incarnation=5) as newer, scene.agent(incarnation=4) as older:
        await newer.connect()
        await newer.hear("ack")
        await older.connect()
        code, words = await ending(older)
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert "incarnation 5" in words
        assert "second agent" in words
        assert not newer.ended.is_set()


async def test_the_older_of_two_agents_is_fenced_when_the_newer_comes(scene: Scene) -> None:
    async with scene.agent(incarnation=4) as older, scene.agent(incarnation=5) as newer:
        await older.connect()
        await older.hear("ack")
        await newer.connect()
        await newer.hear("ack")
        await ending(older)
        await older.connect()
        assert (await ending(older))[0] is grpc.StatusCode.ALREADY_EXISTS
        assert scene.host.term.inventory.nodes["gpu-1"].gate.incarnation == 5


async def test_duplicates_and_stragglers_change_nothing(scene: Scene) -> None:
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


async def test_fields_and_messages_of_a_later_version_are_ignored(scene: Scene) -> None:
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


async def test_an_oversized_message_ends_its_own_stream_only(scene: Scene) -> None:
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


async def test_another_node_can_not_register_on_an_open_stream(scene: Scene) -> None:
    async with scene.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.say(register=pb.Register(node_id="gpu-2", incarnation=1))
        code, words = await ending(agent)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "gpu-2" in words


async def test_a_register_on_an_open_stream_describes_the_node_anew(scene: Scene) -> None:
    async with scene.agent(gpus=2) as agent:
        await agent.connect()
        await agent.hear("ack")
        await agent.say(heartbeat=pb.Heartbeat(new_problems=[pb.Problem(text="xid 79")]))
        node = scene.host.term.inventory.nodes
        await eventually(lambda: node["gpu-1"].facts.problems != (), "the problem is known")  # type: ignore[union-attr]
        agent.gpus = 1
        await agent.say(register=agent.description())
        await eventually(lambda: len(node["gpu-1"].facts.gpus) == 1, "one GPU fell out")  # type: ignore[union-attr]
        assert node["gpu-1"].facts.problems == ()  # type: ignore[union-attr]
        assert scene.host.term.connections.nodes() == ["gpu-1"]


def port_read(sent: int, manager: str) -> pb.IbPortsReport:
    """A reading of the one port."""
    counters = {"port_xmit_data": sent, "port_rcv_data": sent}
    return pb.IbPortsReport(
        ports=[pb.IbPort(hca="mlx5_0", port=1, state="ACTIVE", counters=counters, sm_guid=manager)]
    )


def domain(cluster: str) -> list[pb.GpuFabric]:
    """The NVLink domain as both GPUs tell it."""
    return [pb.GpuFabric(index=n, state="completed", cluster_uuid=cluster) for n in range(2)]


BEATS: list[dict[str, Any]] = [
    {"gpu_memory": pb.GpuMemoryReport(gpus=[pb.GpuMemory(index=1, used_bytes=9)])},
    {"new_problems": [pb.Problem(text="xid 79")]},
    {"storage": pb.StorageReport(file_systems=[pb.Storage(path="/data", free_bytes=1, total_bytes=2)])},
    {"weights": pb.WeightsReport()},
    {"memory_total_bytes": 77},
    {"engines": pb.EnginesReport(versions={"vllm": "2", "sglang": "1"})},
    {
        "provision": pb.ProvisionReport(
            engines=[pb.EngineInstall(engine="vllm", version="2", state="failed", detail="disk")]
        )
    },
    {"ib_ports": port_read(1000, "guid-b")},
    {"fabrics": pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric="ib1")])},
    {"gpu_fabric": pb.GpuFabricReport(gpus=domain("other"))},
    {"imex": pb.Imex(state="stopped")},
    {"load": pb.NodeLoad(load1=2.5, shards=[pb.ShardLoad(shard_id="m-0-0", cpu_cores=1.5)])},
]
NEWS = [
    ("problem", "node", "", "xid 79"),
    ("memory", "", str(1 << 40), "77"),
    ("engines", "", "vllm 1", "sglang 1, vllm 2"),
    ("provision", "vllm 2", "downloading", "failed: disk"),
    ("subnet-manager", "mlx5_0/1", "guid-a", "guid-b"),
    ("fabrics", "", "ib0", "ib1"),
    ("nvlink-domain", "", "one/0", "other/0"),
    ("imex", "", "running", "stopped"),
]


async def test_heartbeats_change_what_they_carry_and_their_news_are_events(scene: Scene) -> None:
    node = scene.host.term.inventory.nodes
    async with scene.agent(gpus=2) as agent, scene.agent("plain") as plain:
        installing = pb.EngineInstall(engine="vllm", version="2", state="downloading")
        await agent.connect(
            weights=pb.WeightsReport(weights=[pb.Weights(path="/w/a")]),
            provision=pb.ProvisionReport(engines=[installing]),
            ib_ports=port_read(500, "guid-a"),
            fabrics=pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric="ib0")]),
            imex=pb.Imex(state="running"),
        )
        await agent.hear("ack")
        await agent.say(heartbeat=pb.Heartbeat(gpu_fabric=pb.GpuFabricReport(gpus=domain("one"))))
        for beat in BEATS:
            await agent.say(heartbeat=pb.Heartbeat(**beat))
        await eventually(lambda: node["gpu-1"].facts.load is not None, "the last one came")  # type: ignore[union-attr]
        await plain.connect()
        await plain.hear("ack")
        await plain.say(heartbeat=pb.Heartbeat(new_problems=[pb.Problem(text="fan")]))
        await plain.say(heartbeat=pb.Heartbeat(load=pb.NodeLoad()))
        await eventually(lambda: node["plain"].facts.load is not None, "a node without GPUs too")  # type: ignore[union-attr]
        async with scene.host.operator(scene.authority.issue(Role.ADMIN, "olga")) as stub:
            shown = await stub.GetNode(fleet_pb2.GetNodeRequest(node_id="gpu-1"), timeout=SECONDS)
            other = await stub.GetNode(fleet_pb2.GetNodeRequest(node_id="plain"), timeout=SECONDS)
    found = shown.node
    assert [gpu.memory_used_bytes for gpu in found.gpus] == [0, 9]
    assert [file_system.path for file_system in found.storage.file_systems] == ["/data"]
    assert (list(found.weights.weights), found.memory_total_bytes) == ([], 77)
    assert shown.load.shards[0].cpu_cores == 1.5
    assert shown.rates[0].transmit_bytes_per_second > 0
    assert (shown.summary.gpus_unhealthy, shown.summary.gpus_free) == (1, 1)
    said = [(event.kind, event.subject, event.before, event.after) for event in shown.events]
    assert said[-len(NEWS) :] == NEWS
    assert list(other.summary.problems) == ["fan"]


async def test_a_slow_reader_fills_its_queue_and_nobody_elses_and_loses_its_stream(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
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


async def test_who_says_nothing_is_not_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "REGISTER_SECONDS", 0.3)
    async with scene.agent() as agent:
        agent.open()
        code, words = await ending(agent)
        assert (code, words) == (grpc.StatusCode.INVALID_ARGUMENT, "no opening message within 0.3 s")


async def test_a_command_to_a_node_without_a_stream_is_refused(scene: Scene) -> None:
    with pytest.raises(Unavailable, match="no agent connected: node nowhere"):
        scene.host.term.connections.send("nowhere", pb.LeaderMessage())


async def test_the_stream_of_a_revoked_name_ends(scene: Scene) -> None:
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


async def test_streams_end_when_the_leadership_does(scene: Scene) -> None:
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
