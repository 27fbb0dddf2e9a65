"""What nodes tell of themselves over their streams, and what the leader makes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base.pki import Role
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS
from tests.support.fleet_scene import SecureScene, secure_scene
from tests.support.waiting import eventually


@pytest_asyncio.fixture
async def scene(tmp_path: Path, etcd: EtcdCluster) -> AsyncIterator[SecureScene]:
    async with secure_scene(tmp_path, etcd) as made:
        yield made


async def test_a_register_on_an_open_stream_describes_the_node_anew(scene: SecureScene) -> None:
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


async def test_heartbeats_change_what_they_carry_and_their_news_are_events(scene: SecureScene) -> None:
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
