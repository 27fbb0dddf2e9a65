"""Processors, memory, NUMA nodes, load and names of this machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
from akv.v1 import agent_pb2

from controlplane.agent.discovery.sysfs import entries, read_text


def read_cpu(sys_root: Path, proc_root: Path) -> agent_pb2.Cpu:
    """Model, number of logical processors, and NUMA nodes."""
    return agent_pb2.Cpu(
        model=_cpu_model(read_text(proc_root / "cpuinfo")),
        count=os.cpu_count() or 0,
        numa_nodes=[
            agent_pb2.NumaNode(
                id=int(path.name.removeprefix("node")),
                cpus=read_text(path / "cpulist"),
                memory_total_bytes=_meminfo(read_text(path / "meminfo"), "MemTotal"),
            )
            for path in entries(sys_root / "devices" / "system" / "node")
            if path.name.removeprefix("node").isdecimal()
        ],
    )


def memory_total(proc_root: Path) -> int:
    """Bytes of memory."""
    return _meminfo(read_text(proc_root / "meminfo"), "MemTotal")


def operating_system(etc: Path = Path("/etc")) -> str:
    """The distribution's name, as "Debian GNU/Linux 12 (bookworm)"."""
    for line in read_text(etc / "os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def read_load() -> agent_pb2.NodeLoad:
    """Load and memory now; CPU use since the last call."""
    memory = psutil.virtual_memory()
    load1, load5, load15 = os.getloadavg()
    return agent_pb2.NodeLoad(
        cpu_percent=psutil.cpu_percent(),
        cpu_count=os.cpu_count() or 0,
        load1=load1,
        load5=load5,
        load15=load15,
        memory_used_bytes=memory.used,
        memory_available_bytes=memory.available,
    )


def _cpu_model(cpuinfo: str) -> str:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model", "CPU implementer"}:
            return value.strip()
    return ""


def _meminfo(text: str, name: str) -> int:
    """The value of a line `[Node 0 ]MemTotal:   123 kB`, in bytes."""
    for line in text.splitlines():
        words = line.split()
        if f"{name}:" in words[:3] and words[-1] == "kB" and words[-2].isdecimal():
            return int(words[-2]) * 1024
    return 0
