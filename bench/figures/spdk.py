"""SPDK's NVMe/TCP target and its `spdk_nvme_perf`, from a built source tree outside this repository."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.initiator import Case
from bench.pod import HOST
from bench.processes import ProcessError, child, free_port

NQN = "nqn.2016-06.io.spdk:bench"
NAMESPACE_BYTES = 512 << 20
BLOCK = 512
MEMORY_MIB = 1024
# Whole blocks in one command; the rest is the defaults.
TRANSPORT = {"trtype": "TCP", "io_unit_size": 131072, "max_io_size": 2 << 20, "in_capsule_data_size": 8192}
_START_SECONDS = 60.0


@contextmanager
def target(tree: Path, directory: Path, core: int) -> Iterator[int]:
    """`nvmf_tgt` with a namespace in memory, polling on `core`; its port."""
    port, config = free_port(HOST), directory / "nvmf_tgt.json"
    config.write_text(json.dumps(_config(port)))
    command: list[str | Path] = [tree / "build/bin/nvmf_tgt", "-m", hex(1 << core), "--no-huge", "--no-pci"]
    command += ["-s", str(MEMORY_MIB), "-r", directory / "spdk.sock", "-c", config]
    with child(command, directory / "nvmf_tgt.log", _libraries(tree)) as running:
        running.wait_port(HOST, port)
        yield port


def _libraries(tree: Path) -> dict[str, str]:
    """A tree that is built on a packaged DPDK has shared libraries."""
    return {"LD_LIBRARY_PATH": str(tree / "build/lib")}


def _config(port: int) -> dict[str, object]:
    listen = {"trtype": "TCP", "adrfam": "IPv4", "traddr": HOST, "trsvcid": str(port)}
    malloc = {"name": "M0", "num_blocks": NAMESPACE_BYTES // BLOCK, "block_size": BLOCK}
    steps = [
        ("nvmf_create_transport", TRANSPORT),
        ("nvmf_create_subsystem", {"nqn": NQN, "allow_any_host": True, "serial_number": "BENCH1"}),
        ("nvmf_subsystem_add_ns", {"nqn": NQN, "namespace": {"bdev_name": "M0"}}),
        ("nvmf_subsystem_add_listener", {"nqn": NQN, "listen_address": listen}),
    ]
    nvmf = [{"method": method, "params": params} for method, params in steps]
    bdev = [{"method": "bdev_malloc_create", "params": malloc}]
    return {"subsystems": [{"subsystem": "bdev", "config": bdev}, {"subsystem": "nvmf", "config": nvmf}]}


def perf(tree: Path, port: int, case: Case, seconds: int, core: int) -> float:
    """GB/s (10^9 bytes) of `spdk_nvme_perf` polling on `core`. Raises ProcessError with its last lines."""
    place = f"trtype:TCP adrfam:IPv4 traddr:{HOST} trsvcid:{port} subnqn:{NQN}"
    command = [str(tree / "build/bin/spdk_nvme_perf"), "--no-huge", "-s", str(MEMORY_MIB // 2)]
    command += ["-c", hex(1 << core), "-q", str(case.depth), "-o", case.size, "-w", case.op]
    command += ["-t", str(seconds), "-r", place]
    env = {**os.environ, **_libraries(tree)}
    limit = seconds + _START_SECONDS
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise ProcessError(f"spdk_nvme_perf did not end within {limit:.0f} s") from None
    speed = total_mib_per_s(done.stdout)
    if done.returncode != 0 or speed is None:
        said = " | ".join((done.stdout + done.stderr).splitlines()[-5:])
        raise ProcessError(f"spdk_nvme_perf ended with code {done.returncode}: {said}")
    return speed * 2**20 / 1e9


def total_mib_per_s(output: str) -> float | None:
    """The MiB/s of the line `Total : IOPS MiB/s average min max`; None where there is no such line."""
    for line in output.splitlines():
        name, _, columns = line.partition(":")
        if name.strip() == "Total" and len(columns.split()) >= 2:
            return float(columns.split()[1])
    return None
