"""What a node has, from its kernel's trees and its driver over the agent's stream to an operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest
from akv.v1 import fleet_pb2

from controlplane.agent import inventory
from controlplane.agent.discovery.gpus import GpuReader
from controlplane.agent.engines.environment import Environment, Wanted
from tests.support.addresses import LoopbackNet
from tests.support.agents import agent, write_config
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FAST, SECONDS, FleetHost, leading
from tests.support.nvml import Driver, card
from tests.support.sysfs import infiniband, lay
from tests.support.waiting import eventually

DATA = Path(__file__).parents[1] / "data" / "agent"
MASTER = "sm lid 1 sm guid 0x248a0703008a2d5e, activity count 36 priority 14 state 3 SMINFO_MASTER"


def lay_sys(root: Path) -> None:
    """Two sockets, two cards on the PCI bus, an InfiniBand adapter, and soft RoCE as it was recorded."""
    lay(root, json.loads((DATA / "sysfs_rxe0.json").read_text()))
    infiniband(root, "mlx5_0")
    for number, address in enumerate(("0000:02:00.0", "0000:1a:00.0")):
        device = f"bus/pci/devices/{address}"
        kind = {"vendor": "0x10de", "class": "0x030200", "device": "0x2330", "numa_node": str(number)}
        lay(root, {f"{device}/{name}": f"{text}\n" for name, text in kind.items()})
        node = f"devices/system/node/node{number}"
        lay(root, {f"{node}/cpulist": f"{number}\n", f"{node}/meminfo": f"Node {number} MemTotal: 1000 kB\n"})


def lay_proc(root: Path, shared: Path) -> None:
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / {shared} rw - nfs4 host:/weights rw\n"
    lay(
        root,
        {
            "cpuinfo": "processor\t: 0\nmodel name\t: EPYC 9654\n",
            "meminfo": "MemFree: 1 kB\nMemTotal:        2048 kB\n",
            "self/mountinfo": mounts,
            "77/comm": "nvidia-imex\n",
        },
    )


def two_cards() -> Driver:
    """One in an NVLink domain, and one that is to be replaced."""
    cluster = type(pynvml.c_nvmlGpuFabricInfoV_t().clusterUuid)(*range(1, 17))
    domain = {"state": 3, "cliqueId": 7, "healthMask": 2, "clusterUuid": cluster}
    return Driver(card(2, fabric=domain), card(26, nvmlDeviceGetRemappedRows=(0, 1, 1, 1)))


@asynccontextmanager
async def node(etcd: EtcdCluster, folder: Path, address: str) -> AsyncIterator[FleetHost]:
    """A leader, and the agent of gpu-1 with these trees, an engine, and weights on a network file system."""
    shared = folder / "nfs"
    lay(shared, {"llama/model.safetensors": "x" * 8192})
    lay_sys(folder / "sys")
    lay_proc(folder / "proc", shared)
    engine = Environment(folder / "engines", Wanted("vllm", "0.11"))
    (engine.path / "bin").mkdir(parents=True)
    engine.python.touch()
    engine.finish({})
    keys: dict[str, Any] = {
        "address": address,
        "sys_root": str(folder / "sys"),
        "proc_root": str(folder / "proc"),
        "weight_roots": [{"path": str(shared)}],
        "labels": {"rack": "r1"},
    }
    async with (
        leading(etcd, limits=FAST) as host,
        agent(write_config(folder, "gpu-1", host.api, **keys)),
    ):
        yield host


async def shown(
    host: FleetHost, right: Callable[[fleet_pb2.GetNodeResponse], bool], what: str
) -> fleet_pb2.GetNodeResponse:
    """The node as an operator sees it, once it is right."""
    nodes = host.term.inventory.nodes
    await eventually(lambda: "gpu-1" in nodes, "it has registered", SECONDS)
    found: fleet_pb2.GetNodeResponse | None = None
    async with host.operator() as stub:
        for _ in range(int(SECONDS / 0.1)):
            found = await stub.GetNode(fleet_pb2.GetNodeRequest(node_id="gpu-1"), timeout=SECONDS)
            if found is not None and right(found):
                return found
            await asyncio.sleep(0.1)
    raise AssertionError(f"not {what}: {found}")


async def test_what_a_node_has_is_told_and_so_is_a_driver_that_dies(
    etcd: EtcdCluster, agent_folder: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = two_cards()
    monkeypatch.setattr(inventory, "GpuReader", partial(GpuReader, nvml=driver))
    tool = agent_folder / "tools" / "sminfo"
    lay(tool.parent, {"sminfo": f"#!/bin/sh\necho 'sminfo: {MASTER}'\n"})
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    async with node(etcd, agent_folder, loopback_net.host(1)) as host:

        def complete(found: fleet_pb2.GetNodeResponse) -> bool:
            managed = any(port.sm_guid for port in found.node.ib_ports.ports)
            return managed and bool(found.node.engines.versions) and found.HasField("load")

        found = await shown(host, complete, "complete")
        check_cards(found)
        check_rest(found, agent_folder)
        driver.dead = True
        dead = await shown(host, lambda now: now.node.gpus[0].uuid.startswith("0000:"), "read from PCI")
    assert [gpu.uuid for gpu in dead.node.gpus] == ["0000:02:00.0", "0000:1a:00.0"]
    assert all("the driver does not answer" in gpu.problems[0] for gpu in dead.node.gpus)
    assert (dead.summary.gpus, dead.summary.gpus_unhealthy, dead.summary.gpus_free) == (2, 2, 0)


def check_cards(found: fleet_pb2.GetNodeResponse) -> None:
    good, bad = found.node.gpus
    assert (good.uuid, good.model, good.pci_address, good.numa_node) == (
        "GPU-2",
        "NVIDIA H100",
        "0000:02:00.0",
        0,
    )
    assert (good.memory_total_bytes, good.memory_used_bytes) == (80 << 30, 2 << 30)
    assert (good.fabric.state, good.fabric.clique_id) == ("completed", 7)
    assert good.fabric.cluster_uuid == "01020304-0506-0708-090a-0b0c0d0e0f10"
    assert list(bad.problems) == ["row remapping failed: the card is to be replaced"]
    assert found.summary.gpus_unhealthy == 1


def check_rest(found: fleet_pb2.GetNodeResponse, folder: Path) -> None:
    register = found.node
    assert (register.cpu.model, register.memory_total_bytes) == ("EPYC 9654", 2048 * 1024)
    assert [(numa.cpus, numa.memory_total_bytes) for numa in register.cpu.numa_nodes] == [
        ("0", 1_024_000),
        ("1", 1_024_000),
    ]
    systems = {system.path: system.shared for system in register.storage.file_systems}
    assert systems == {"/": False, str(folder / "nfs"): True}
    assert [(one.path, one.size_bytes, one.shared) for one in register.weights.weights] == [
        (str(folder / "nfs" / "llama"), 8192, True)
    ]
    assert dict(register.engines.versions) == {"vllm": "0.11"}
    assert {"vllm", "sglang", "llamacpp"} <= set(register.installable_engines)
    ports = {port.hca: port for port in register.ib_ports.ports}
    infini, roce = ports["mlx5_0"], ports["rxe0"]
    assert (infini.state, infini.rate_gbps, infini.link_layer) == ("ACTIVE", 400, "InfiniBand")
    assert infini.counters["port_xmit_data"] == 4000
    assert (infini.sm_guid, infini.sm_priority, infini.sm_state) == ("248a0703008a2d5e", 14, "master")
    assert (roce.link_layer, roce.network, roce.sm_guid) == ("Ethernet", "rdma0", "")
    assert list(found.summary.fabrics) == ["ib-fe80000000000000", "roce"]
    assert register.imex.state == "running"
    assert register.labels["rack"] == "r1"
