"""GPUs: through NVML where NVIDIA's driver answers, else as PCI devices that can be seen but not used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pynvml
from akv.v1 import agent_pb2

from controlplane.agent.discovery.sysfs import entries, read_number, read_text
from controlplane.agent.shards.record import TOKEN_VARIABLE

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
# VGA, 3D and other display controllers, and AMD's accelerators ("processing accelerator").
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_NO_NUMA = -1

T = TypeVar("T")


def pci_gpus(sys_root: Path, problem: str) -> list[agent_pb2.Gpu]:
    """GPUs on the PCI bus, with `problem`: without a driver that answers nothing more can be said of them."""
    found: list[agent_pb2.Gpu] = []
    for path in entries(sys_root / "bus" / "pci" / "devices"):
        vendor = _VENDORS.get(read_text(path / "vendor"))
        if vendor and read_text(path / "class").startswith(_CLASSES):
            device = read_text(path / "device").removeprefix("0x")
            found.append(
                agent_pb2.Gpu(
                    index=len(found),
                    uuid=path.name,
                    model=f"{vendor} {device}",
                    pci_address=path.name,
                    numa_node=read_number(path / "numa_node", _NO_NUMA),
                    problems=[problem],
                )
            )
    return found


class GpuReader:
    """Reads all GPUs again and again. `nvml` is the module pynvml or what stands in for it in a test."""

    def __init__(self, sys_root: Path, proc_root: Path, nvml: ModuleType | Any = pynvml) -> None:
        self._sys = sys_root
        self._proc = proc_root
        self._nvml = nvml
        self._open = False

    def read(self) -> list[agent_pb2.Gpu]:
        """The GPUs now. A driver that fails is opened anew at the next call."""
        try:
            if not self._open:
                self._nvml.nvmlInit()
                self._open = True
            count = self._nvml.nvmlDeviceGetCount()
            driver = _text(self._nvml.nvmlSystemGetDriverVersion())
            return [self._gpu(index, driver) for index in range(count)]
        except self._nvml.NVMLError as error:
            self._close()
            return pci_gpus(self._sys, f"the driver does not answer: {error}")

    def _close(self) -> None:
        if self._open:
            self._open = False
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _gpu(self, index: int, driver: str) -> agent_pb2.Gpu:
        nvml = self._nvml
        gpu = agent_pb2.Gpu(index=index, driver_version=driver, numa_node=_NO_NUMA)
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu.uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            gpu.model = _text(nvml.nvmlDeviceGetName(handle))
            gpu.pci_address = _pci_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            gpu.memory_total_bytes, gpu.memory_used_bytes = memory.total, memory.used
            device = self._sys / "bus" / "pci" / "devices" / gpu.pci_address
            gpu.numa_node = read_number(device / "numa_node", _NO_NUMA)
            gpu.problems.extend(self._problems(handle))
            self._fabric(gpu, handle)
        except nvml.NVMLError as error:  # it fell off the bus: the others are still there
            gpu.uuid = gpu.uuid or f"unreadable-{index}"
            gpu.problems.append(f"can't be read: {error}")
        return gpu

    def _problems(self, handle: Any) -> list[str]:
        nvml = self._nvml
        found = []
        uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        if self._ask(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile), 0):
            found.append("uncorrectable memory errors since the driver was loaded")
        rows: Sequence[int] = self._ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
        if rows[3]:
            found.append("row remapping failed: the card is to be replaced")
        elif rows[2]:
            found.append("row remapping is pending: the card needs a reset")
        processes: Sequence[Any] = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), ())
        strangers = sorted(process.pid for process in processes if not self._of_a_shard(process.pid))
        found += [f"process {pid} ({self._name(pid)}) uses it and is no shard" for pid in strangers]
        return found

    def _fabric(self, gpu: agent_pb2.Gpu, handle: Any) -> None:
        nvml = self._nvml
        info = nvml.c_nvmlGpuFabricInfoV_t()
        with suppress(nvml.NVMLError):  # cards without NVLink and older drivers refuse in different words
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, info)
            gpu.fabric.CopyFrom(fabric_of(gpu.index, info))

    def _ask(self, question: Callable[[], T], default: T) -> T:
        """What the driver answers; `default` where this card or driver does not know the question."""
        try:
            return question()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
            return default

    def _of_a_shard(self, pid: int) -> bool:
        try:
            environment = (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        return any(entry.startswith(f"{TOKEN_VARIABLE}=".encode()) for entry in environment.split(b"\0"))

    def _name(self, pid: int) -> str:
        return read_text(self._proc / str(pid) / "comm") or "of another user or container"


def fabric_of(index: int, info: Any) -> agent_pb2.GpuFabric:
    """A GPU's NVLink domain from nvmlGpuFabricInfo: bits 0 and 1 of the mask tell of a degraded bandwidth."""
    identity = bytes(info.clusterUuid).hex()
    uuid = "-".join((identity[:8], identity[8:12], identity[12:16], identity[16:20], identity[20:32]))
    return agent_pb2.GpuFabric(
        index=index,
        state=_FABRIC_STATES.get(info.state, str(info.state)),
        status=f"NVML status {info.status}" if info.status else "",
        cluster_uuid=uuid if identity.strip("0") else "",
        clique_id=info.cliqueId,
        bandwidth={1: "degraded", 2: "full"}.get(info.healthMask & 3, ""),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _pci_address(bus_id: str) -> str:
    """NVML writes the domain with eight digits, the kernel with four, both in their own case."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def read_imex(proc_root: Path, dev: Path = Path("/dev")) -> agent_pb2.Imex:
    """NVIDIA's memory export service: its channels, and whether its process runs."""
    channels = len([p for p in entries(dev / "nvidia-caps-imex-channels") if p.name.startswith("channel")])
    runs = any(
        read_text(path / "comm").startswith("nvidia-imex")
        for path in entries(proc_root)
        if path.name.isdecimal()
    )
    state = "running" if runs else "stopped" if channels else "absent"
    return agent_pb2.Imex(state=state, channels=channels)
