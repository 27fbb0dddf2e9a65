"""What nodes tell of themselves over their streams, and what the leader makes of it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.fleet.liveness import Limits
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, SimAgent, leading
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

# Kind, subject, before, after.
Event = tuple[str, str, str, str]


@dataclass
class Told:
    """A node whose heartbeats are told one by one, and what an operator is shown of it."""

    host: FleetHost
    agent: SimAgent
    stub: Any
    shown: fleet_pb2.GetNodeResponse = field(default_factory=fleet_pb2.GetNodeResponse)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def tell(self, **parts: Any) -> tuple[set[str], list[Event]]:
        """Send a heartbeat: which parts of the node it changed, and the events that it made."""
        before = self.shown
        await self.agent.say(heartbeat=pb.Heartbeat(**parts))
        number = next(self._numbers)
        # A second one, whose load shows that the first has been taken.
        await self.agent.say(heartbeat=pb.Heartbeat(load=pb.NodeLoad(load1=number)))
        node = self.host.term.inventory.nodes[self.agent.node_id]

        def taken() -> bool:
            return node.facts is not None and node.facts.load is not None and node.facts.load.load1 == number

        await eventually(taken, "the heartbeat is taken", SECONDS)
        request = fleet_pb2.GetNodeRequest(node_id=self.agent.node_id)
        self.shown = await self.stub.GetNode(request, timeout=SECONDS)
        news = self.shown.events[len(before.events) :]
        return changed(before.node, self.shown.node), [(e.kind, e.subject, e.before, e.after) for e in news]

    @property
    def rates(self) -> list[tuple[str, int, float, float]]:
        """Each port's rates in bytes per second, as they are shown."""
        return [
            (rate.hca, rate.port, rate.transmit_bytes_per_second, rate.receive_bytes_per_second)
            for rate in self.shown.rates
        ]


def changed(before: pb.Register, after: pb.Register) -> set[str]:
    """Names of the fields that differ."""
    return {
        one.name
        for one in pb.Register.DESCRIPTOR.fields
        if getattr(before, one.name) != getattr(after, one.name)
    }


@asynccontextmanager
async def told(host: FleetHost, node: str = "gpu-1", gpus: int = 2, **fields: Any) -> AsyncIterator[Told]:
    """A node that has registered with these fields."""
    async with host.agent(node, gpus=gpus) as agent, host.operator() as stub:
        await agent.connect(**fields)
        await agent.hear("ack")
        made = Told(host, agent, stub)
        await made.tell()
        yield made


async def test_a_register_on_an_open_stream_describes_the_node_anew(host: FleetHost) -> None:
    async with told(host) as node:
        await node.tell(new_problems=[pb.Problem(text="xid 79")])
        assert [problem.text for problem in node.shown.node.problems] == ["xid 79"]
        node.agent.gpus = 1
        await node.agent.say(register=node.agent.description())
        parts, _ = await node.tell()
        assert parts == {"gpus", "problems"}
        assert (len(node.shown.node.gpus), list(node.shown.node.problems)) == (1, [])
        assert host.term.connections.nodes() == ["gpu-1"]


def fabrics(*names: str) -> pb.FabricsReport:
    return pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric=name) for name in names])


def installing(state: str, detail: str = "") -> pb.ProvisionReport:
    engine = pb.EngineInstall(engine="vllm", version="2", state=state, detail=detail)
    return pb.ProvisionReport(engines=[engine])


def domain(cluster: str) -> pb.GpuFabricReport:
    """The NVLink domain as both GPUs tell it."""
    return pb.GpuFabricReport(
        gpus=[pb.GpuFabric(index=n, state="completed", cluster_uuid=cluster) for n in range(2)]
    )


def managed_by(manager: str) -> pb.IbPortsReport:
    return pb.IbPortsReport(ports=[pb.IbPort(hca="mlx5_0", port=1, state="ACTIVE", sm_guid=manager)])


XID = [pb.Problem(text="xid 79")]
# What a heartbeat carries, the parts of the node that change by it, the events.
BEATS: list[tuple[dict[str, Any], set[str], list[Event]]] = [
    ({}, set(), []),
    ({"gpu_memory": pb.GpuMemoryReport(gpus=[pb.GpuMemory(index=1, used_bytes=9)])}, {"gpus"}, []),
    ({"new_problems": XID}, {"problems"}, [("problem", "node", "", "xid 79")]),
    ({"new_problems": XID}, set(), []),
    ({"storage": pb.StorageReport(file_systems=[pb.Storage(path="/data", free_bytes=1)])}, {"storage"}, []),
    ({"weights": pb.WeightsReport()}, {"weights"}, []),
    ({"memory_total_bytes": 77}, {"memory_total_bytes"}, [("memory", "", str(1 << 40), "77")]),
    (
        {"engines": pb.EnginesReport(versions={"vllm": "2", "sglang": "1"})},
        {"engines"},
        [("engines", "", "vllm 1", "sglang 1, vllm 2")],
    ),
    ({"engines": pb.EnginesReport()}, {"engines"}, [("engines", "", "sglang 1, vllm 2", "")]),
    ({"provision": installing("downloading", "50 %")}, {"provision"}, []),
    (
        {"provision": installing("failed", "disk")},
        {"provision"},
        [("provision", "vllm 2", "downloading", "failed: disk")],
    ),
    (
        {"ib_ports": managed_by("guid-b")},
        {"ib_ports"},
        [("subnet-manager", "mlx5_0/1", "guid-a", "guid-b")],
    ),
    ({"fabrics": fabrics()}, {"fabrics"}, [("fabrics", "", "ib0", "")]),
    ({"fabrics": fabrics("ib0", "ib1")}, {"fabrics"}, [("fabrics", "", "", "ib0, ib1")]),
    ({"gpu_fabric": domain("one")}, {"gpus"}, [("nvlink-domain", "", "", "one/0")]),
    ({"gpu_fabric": domain("other")}, {"gpus"}, [("nvlink-domain", "", "one/0", "other/0")]),
    ({"imex": pb.Imex(state="stopped")}, {"imex"}, [("imex", "", "running", "stopped")]),
]


async def test_a_heartbeat_changes_what_it_carries_and_nothing_else(
    host: FleetHost, capsys: pytest.CaptureFixture[str]
) -> None:
    whole: dict[str, Any] = {
        "weights": pb.WeightsReport(weights=[pb.Weights(path="/w/a")]),
        "provision": installing("downloading", "1 %"),
        "ib_ports": managed_by("guid-a"),
        "fabrics": fabrics("ib0"),
        "imex": pb.Imex(state="running"),
    }
    async with told(host, **whole) as node:
        capsys.readouterr()
        for beat, parts, events in BEATS:
            assert await node.tell(**beat) == (parts, events), beat
        assert [gpu.memory_used_bytes for gpu in node.shown.node.gpus] == [0, 9]
        assert (node.shown.summary.gpus_unhealthy, node.shown.summary.gpus_free) == (1, 1)
    logged = capsys.readouterr().out
    for _, _, events in BEATS:
        for kind, _, _, _ in events:
            assert f"node {kind}" in logged
    assert logged.count("node provision") == 1


async def test_load_comes_with_figures_of_each_shard_and_no_event(host: FleetHost) -> None:
    async with told(host) as node:
        load = pb.NodeLoad(cpu_percent=50, shards=[pb.ShardLoad(shard_id="m-0-0", cpu_cores=1.5)])
        await node.agent.say(heartbeat=pb.Heartbeat(load=load))
        facts = host.term.inventory.nodes["gpu-1"]
        await eventually(lambda: facts.facts is not None and facts.facts.load == load, "it is taken")
        shown = await node.stub.GetNode(fleet_pb2.GetNodeRequest(node_id="gpu-1"), timeout=SECONDS)
        assert shown.load == load
        assert len(shown.events) == len(node.shown.events)


async def test_problems_of_a_node_without_gpus_are_shown_and_harm_nothing(host: FleetHost) -> None:
    async with told(host, "plain", gpus=0) as node:
        parts, events = await node.tell(new_problems=[pb.Problem(text="fan")])
        assert (parts, events) == ({"problems"}, [("problem", "node", "", "fan")])
        assert list(node.shown.summary.problems) == ["fan"]
        assert (node.shown.summary.gpus, node.shown.summary.gpus_unhealthy) == (0, 0)


def counted(*readings: int) -> pb.IbPortsReport:
    """A reading of ports 1, 2, …: so much sent, and twice as much received."""
    return pb.IbPortsReport(
        ports=[
            pb.IbPort(hca="mlx5_0", port=n, counters={"port_xmit_data": sent, "port_rcv_data": 2 * sent})
            for n, sent in enumerate(readings, start=1)
        ]
    )


async def test_counters_become_rates(etcd: EtcdCluster) -> None:
    clock = ManualClock()
    patient = Limits(suspect=1e6, lost=1e6)
    async with leading(etcd, clock=clock, limits=patient) as host, told(host, ib_ports=counted(1000)) as node:
        for seconds, readings, sent in (
            (10, (2000,), (100.0,)),
            (10, (3000, 7000), (100.0, 0.0)),  # a first reading of the second port
            (10, (500, 8000), (0.0, 100.0)),  # the first one was reset
            (10, (1500, 9000), (100.0, 100.0)),
            (121, (99_000, 99_000), (0.0, 0.0)),  # too long ago
            (5, (99_500, 99_000), (100.0, 0.0)),
        ):
            clock.now += seconds
            await node.tell(ib_ports=counted(*readings))
            assert node.rates == [("mlx5_0", n, rate, 2 * rate) for n, rate in enumerate(sent, start=1)]
