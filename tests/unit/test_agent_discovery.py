"""Discovery from recorded trees of /sys and /proc, and from a driver that answers as NVML does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.agent.connections import established, is_listening
from controlplane.agent.discovery import subnet
from controlplane.agent.discovery.disks import mount_of, mount_points, read_storage
from controlplane.agent.discovery.gpus import GpuReader, fabric_of, pci_gpus, read_imex
from controlplane.agent.discovery.host import memory_total, operating_system, read_cpu, read_load
from controlplane.agent.discovery.infiniband import fabrics_of, read_ports, roce_v2_gid
from controlplane.agent.discovery.subnet import add_subnet_manager, parse_sminfo
from controlplane.agent.discovery.verbs import Verbs, adapter_problems
from controlplane.agent.fabric.perftest import TableError, parse_bandwidth
from tests.support.nvml import Driver, card
from tests.support.sysfs import infiniband, lay

DATA = Path(__file__).parents[1] / "data" / "agent"


@pytest.fixture
def rxe(tmp_path: Path) -> Path:
    """/sys of a Linux 6.1 guest with soft RoCE, as it was recorded there."""
    return lay(tmp_path / "sys", json.loads((DATA / "sysfs_rxe0.json").read_text()))


def test_soft_roce_as_recorded(rxe: Path) -> None:
    [port] = read_ports(rxe)
    assert (port.hca, port.port, port.state, port.physical_state) == ("rxe0", 1, "ACTIVE", "LinkUp")
    assert (port.link_layer, port.rate_gbps, port.network) == ("Ethernet", 2, "rdma0")
    assert port.node_guid == "3c1249fffe1ab59a"
    assert port.counters["link_downed"] == 0
    assert roce_v2_gid(rxe, "rxe0", 1) == 1
    assert [(f.fabric, list(f.hcas)) for f in fabrics_of([port], {})] == [("roce", ["rxe0"])]


def test_infiniband_ports(tmp_path: Path) -> None:
    infiniband(tmp_path, "mlx5_0")
    infiniband(tmp_path, "mlx5_1", state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    infiniband(tmp_path, "mlx5_2", rate="200 Gb/sec (4X HDR)")
    ports = read_ports(tmp_path)
    assert [port.state for port in ports] == ["ACTIVE", "DOWN", "ACTIVE"]
    first = ports[0]
    assert (first.rate_gbps, first.sm_lid, first.gid_prefix) == (400, 17, "fe80000000000000")
    assert first.port_guid == "b8cef60300d56e2a"
    assert first.counters["port_xmit_data"] == 4000
    assert first.counters["symbol_error"] == 3
    [usual] = fabrics_of(ports, {})
    expected = ("ib-fe80000000000000", ["mlx5_0", "mlx5_2"], 200)
    assert (usual.fabric, list(usual.hcas), usual.rate_gbps) == expected
    named = fabrics_of(ports, {"storage": ["mlx5_2", "mlx5_1"]})
    assert [(f.fabric, list(f.hcas)) for f in named] == [
        ("ib-fe80000000000000", ["mlx5_0"]),
        ("storage", ["mlx5_2"]),
    ]


def test_a_tree_with_holes_in_it(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {"class/infiniband/broken/ports/1/state": "", "class/infiniband/broken/ports/x/state": "4: ACTIVE"},
    )
    lay(tmp_path, {"class/infiniband/broken/ports/1/rate": "fast", "class/infiniband/none/node_guid": "0:0"})
    [port] = read_ports(tmp_path)
    assert (port.hca, port.port, port.state, port.rate_gbps) == ("broken", 1, "", 0)
    assert read_ports(tmp_path / "nothing") == []
    assert roce_v2_gid(tmp_path, "broken", 1) is None


def test_the_gid_of_roce_v2_is_one_that_can_be_routed(tmp_path: Path) -> None:
    base = "class/infiniband/m/ports/1"
    gids = {
        "0": ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
        "1": ("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"),
        "2": ("0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2"),
        "10": ("2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2"),
    }
    for index, (gid, kind) in gids.items():
        lay(tmp_path, {f"{base}/gids/{index}": gid, f"{base}/gid_attrs/types/{index}": kind})
    assert roce_v2_gid(tmp_path, "m", 1) == 10
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    lay(tmp_path, {f"{base}/gids/11": mapped, f"{base}/gid_attrs/types/11": "RoCE v2"})
    assert roce_v2_gid(tmp_path, "m", 1) == 11


def test_the_subnet_manager_as_sminfo_tells_it() -> None:
    port = pb.IbPort(hca="mlx5_0", port=1, state="ACTIVE", link_layer="InfiniBand")
    parse_sminfo(
        port,
        "sminfo: sm lid 1 sm guid 0x248a0703008a2d5e, activity count 36 priority 14 state 3 SMINFO_MASTER\n",
    )
    assert (port.sm_guid, port.sm_lid, port.sm_priority, port.sm_state) == (
        "248a0703008a2d5e",
        1,
        14,
        "master",
    )
    parse_sminfo(port, "", "sminfo: iberror: failed: query\n")
    assert port.sm_error == "sminfo: sminfo: iberror: failed: query"


def test_a_subnet_manager_is_asked_for_infiniband_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sminfo"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    roce = pb.IbPort(hca="rxe0", port=1, state="ACTIVE", link_layer="Ethernet")
    real = pb.IbPort(hca="mlx5_0", port=1, state="ACTIVE", link_layer="InfiniBand")
    monkeypatch.setattr("shutil.which", lambda name: None)
    for port in (roce, real):
        add_subnet_manager(port)
    assert (roce.sm_error, real.sm_error) == ("", "sminfo is not installed; install infiniband-diags")
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    monkeypatch.setattr(subnet, "ASK_SECONDS", 0.2)
    add_subnet_manager(real)
    assert "timed out" in real.sm_error


def test_adapters_that_can_be_seen_but_not_opened() -> None:
    class VerbsError(Exception):
        pass

    class Context:
        def __init__(self, name: str) -> None:
            if name == "mlx5_1":
                raise VerbsError("Permission denied")

        def __enter__(self) -> Context:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def query_device(self) -> None:
            pass

    verbs = Verbs(Context, VerbsError)
    assert adapter_problems(verbs, ["mlx5_0", "mlx5_1"]) == [
        "adapter mlx5_1 can't be opened: Permission denied"
    ]
    assert adapter_problems(None, ["mlx5_0"]) == []


def test_gpus_by_the_driver(tmp_path: Path) -> None:
    lay(tmp_path, {"bus/pci/devices/0000:1a:00.0/numa_node": "1"})
    shard, other = SimpleNamespace(pid=10), SimpleNamespace(pid=11)
    lay(
        tmp_path / "proc",
        {"10/environ": "A=1\0AKV_SHARD_TOKEN=x\0", "11/environ": "B=1\0", "11/comm": "miner\n"},
    )
    driver = Driver(
        card(26, nvmlDeviceGetComputeRunningProcesses=[shard, other]),
        card(2, nvmlDeviceGetTotalEccErrors=5),
        card(3, nvmlDeviceGetRemappedRows=(0, 1, 1, 0)),
        card(4, nvmlDeviceGetRemappedRows=(0, 1, 1, 1)),
        card(5, nvmlDeviceGetMemoryInfo=pynvml.NVML_ERROR_GPU_IS_LOST),
    )
    gpus = GpuReader(tmp_path, tmp_path / "proc", driver).read()
    first = gpus[0]
    assert (first.uuid, first.model, first.pci_address) == ("GPU-26", "NVIDIA H100", "0000:1a:00.0")
    assert (first.numa_node, first.driver_version) == (1, "570.86")
    assert first.memory_used_bytes == 26 << 30
    assert [list(gpu.problems) for gpu in gpus] == [
        ["process 11 (miner) uses it and is no shard"],
        ["uncorrectable memory errors since the driver was loaded"],
        ["row remapping is pending: the card needs a reset"],
        ["row remapping failed: the card is to be replaced"],
        ["can't be read: GPU is lost"],
    ]
    assert not first.HasField("fabric")


def test_a_driver_that_dies_and_comes_back(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "bus/pci/devices/0000:1a:00.0/vendor": "0x10de",
            "bus/pci/devices/0000:1a:00.0/class": "0x030200",
            "bus/pci/devices/0000:1a:00.0/device": "0x2330",
            "bus/pci/devices/0000:00:02.0/vendor": "0x10de",
            "bus/pci/devices/0000:00:02.0/class": "0x020000",
            "bus/pci/devices/0000:00:03.0/vendor": "0x8086",
            "bus/pci/devices/0000:00:03.0/class": "0x030000",
        },
    )
    driver = Driver(card(26))
    reader = GpuReader(tmp_path, tmp_path, driver)
    assert not reader.read()[0].problems
    driver.dead = True
    [gpu] = reader.read()
    assert (gpu.uuid, gpu.model) == ("0000:1a:00.0", "NVIDIA 2330")
    assert "the driver does not answer" in gpu.problems[0]
    driver.dead = False
    assert reader.read()[0].uuid == "GPU-26"
    assert driver.opened == 2
    assert pci_gpus(tmp_path / "nothing", "x") == []


def test_an_nvlink_domain() -> None:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    for index in range(16):
        info.clusterUuid[index] = index + 1
    info.state, info.cliqueId, info.healthMask = 3, 7, 2
    fabric = fabric_of(4, info)
    assert fabric.cluster_uuid == "01020304-0506-0708-090a-0b0c0d0e0f10"
    assert (fabric.state, fabric.clique_id, fabric.bandwidth, fabric.status) == ("completed", 7, "full", "")
    info.healthMask, info.status = 1, 15
    assert (fabric_of(4, info).bandwidth, fabric_of(4, info).status) == ("degraded", "NVML status 15")
    assert fabric_of(0, pynvml.c_nvmlGpuFabricInfoV_t()).cluster_uuid == ""


def test_imex(tmp_path: Path) -> None:
    assert read_imex(tmp_path, tmp_path).state == "absent"
    lay(tmp_path, {"nvidia-caps-imex-channels/channel0": "", "nvidia-caps-imex-channels/channel1": ""})
    assert (read_imex(tmp_path, tmp_path).state, read_imex(tmp_path, tmp_path).channels) == ("stopped", 2)
    lay(tmp_path, {"77/comm": "nvidia-imex\n"})
    assert read_imex(tmp_path, tmp_path).state == "running"


def test_host_facts_from_a_tree(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "devices/system/node/node0/cpulist": "0-31\n",
            "devices/system/node/node0/meminfo": "Node 0 MemTotal:       1000 kB\nNode 0 MemFree: 3 kB\n",
            "devices/system/node/node1/cpulist": "32-63\n",
            "devices/system/node/possible": "0-1\n",
            "cpuinfo": "processor\t: 0\nmodel name\t: EPYC 9654\n",
            "meminfo": "MemFree: 1 kB\nMemTotal:        2048 kB\n",
            "os-release": 'NAME="x"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        },
    )
    cpu = read_cpu(tmp_path, tmp_path)
    assert cpu.model == "EPYC 9654"
    assert [(node.id, node.cpus, node.memory_total_bytes) for node in cpu.numa_nodes] == [
        (0, "0-31", 1_024_000),
        (1, "32-63", 0),
    ]
    assert memory_total(tmp_path) == 2048 * 1024
    assert operating_system(tmp_path) == "Debian GNU/Linux 12 (bookworm)"
    assert memory_total(tmp_path / "nothing") == 0


def test_this_machine() -> None:
    load = read_load()
    assert load.cpu_count > 0
    assert load.memory_available_bytes > 0
    [entry, *_] = read_storage([Path("/"), Path("/not/there/yet")], Path("/proc"))
    assert 0 < entry.free_bytes <= entry.total_bytes


def test_mounts(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
            "2 1 0:5 / /mnt/a\\040b rw,noatime shared:2 master:1 - nfs4 h:/x rw\n"
            "3 1 0:6 / /mnt/a\\040b/c rw - ext4 /dev/sdb rw\nrubbish\n"
        },
    )
    mounts = mount_points(tmp_path)
    assert mount_of(Path("/mnt/a b/d"), mounts) == (Path("/mnt/a b"), "nfs4")
    assert mount_of(Path("/mnt/a b/c/d"), mounts) == (Path("/mnt/a b/c"), "ext4")
    assert mount_of(Path("/etc"), mounts) == (Path("/"), "ext4")


def test_connections_of_a_port(tmp_path: Path) -> None:
    heading = "  sl  local_address rem_address   st tx_queue rx_queue\n"
    lay(
        tmp_path,
        {
            "tcp": heading
            + "   0: 0100007F:1F90 00000000:0000 0A 0:0\n   1: 0100007F:1F90 0100007F:8888 01 0:0\n"
            + "   2: 0100007F:8888 0100007F:1F90 01 0:0\n",
            "tcp6": heading + "   0: 00000000000000000000000001000000:1F90 0000:0001 01 0:0\n",
        },
    )
    assert established(8080, tmp_path) == 2
    assert is_listening(8080, tmp_path)
    assert not is_listening(0x8888, tmp_path)
    assert established(8080, tmp_path / "nothing") == 0


def test_perftest_as_recorded() -> None:
    found = parse_bandwidth((DATA / "ib_write_bw.txt").read_text())
    assert found.peak_gbps == pytest.approx(57.61 * 8 * 2**20 / 1e9)
    assert found.average_gbps == pytest.approx(30.30 * 8 * 2**20 / 1e9)
    sizes = parse_bandwidth((DATA / "ib_write_bw_all.txt").read_text())
    assert sizes.average_gbps == pytest.approx(50.11 * 8 * 2**20 / 1e9)


def test_perftest_in_gigabits_with_columns_in_another_order() -> None:
    heading = " #bytes BW average[Gb/sec]  BW peak[Gb/sec] #iterations MsgRate[Mpps]\n"
    table = heading + " 65536  \t390.1 391.2\t5000  0.7\n"
    assert parse_bandwidth(table).average_gbps == 390.1
    assert parse_bandwidth(table).peak_gbps == 391.2


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "no table"),
        ("Couldn't connect to 10.0.0.1:18515\n", "no table"),
        (" #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n", "no row"),
        (" #bytes BW average[Gb/sec]\n 1 2\n", "no column 'BW peak'"),
        (" #bytes BW peak[lines/s] BW average[Gb/sec]\n 1 2 3\n", "'lines/s', which is not known"),
        (" #bytes BW peak[Gb/sec] BW average[Gb/sec]\n 1 x 3\n", "'x', not a number"),
    ],
)
def test_perftest_output_that_tells_nothing(output: str, reason: str) -> None:
    with pytest.raises(TableError, match=reason):
        parse_bandwidth(output)
