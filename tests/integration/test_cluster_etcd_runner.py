"""The etcd runner with the real server: it serves, stops, and never outlives the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from controlplane.cluster.etcd_binary import find_etcd
from controlplane.cluster.etcd_child import ChildEtcd
from controlplane.cluster.etcd_runner import EtcdStart, set_data_aside
from controlplane.cluster.etcd_wal import data_ids, has_data
from tests.support.addresses import LoopbackNet
from tests.support.etcd import EtcdMember
from tests.support.procs import Program, python_environment, wait_until

pytestmark = pytest.mark.slow


def etcd_start(net: LoopbackNet, directory: Path) -> EtcdStart:
    host = net.host(1)
    peer = f"http://{host}:2380"
    return EtcdStart(
        "h1", f"http://{host}:2379", peer, directory / "data", directory / "log", f"h1={peer}", "new", "t"
    )


async def answers(member: EtcdMember) -> None:
    await asyncio.to_thread(wait_until, member.has_leader, "etcd serves")


async def test_it_serves_keeps_its_data_private_and_stops_when_asked(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    start = etcd_start(loopback_net, tmp_path)
    runner = ChildEtcd(lambda: find_etcd().path)
    assert not has_data(start.data_dir)
    await runner.start(start)
    await answers(EtcdMember("h1", loopback_net.host(1), start.data_dir))
    assert has_data(start.data_dir)
    status = EtcdMember("h1", loopback_net.host(1), start.data_dir).call("maintenance/status")
    ids = data_ids(start.data_dir)
    assert ids is not None
    assert (str(ids.member_id), str(ids.cluster_id)) == (
        status["header"]["member_id"],
        status["header"]["cluster_id"],
    )
    assert stat.S_IMODE(start.data_dir.stat().st_mode) == 0o700
    await runner.stop()
    assert not runner.running
    assert (await runner.wait()).code == -signal.SIGTERM
    assert (start.log_dir / "etcd.log").stat().st_size > 0
    set_data_aside(start.data_dir)
    assert not has_data(start.data_dir)
    assert (start.data_dir / "member.previous").is_dir()


async def test_a_start_that_fails_says_why(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    start = etcd_start(loopback_net, tmp_path)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), loopback_net.host(1), 2380)
    runner = ChildEtcd(lambda: find_etcd().path)
    async with server:
        await runner.start(start)
        async with asyncio.timeout(60):
            ended = await runner.wait()
    assert ended.code > 0


OWNER = """
import asyncio, sys
from pathlib import Path
from controlplane.cluster.etcd_child import ChildEtcd
from controlplane.cluster.etcd_runner import EtcdStart
async def main():
    program, name, client, peer, data, log = sys.argv[1:]
    runner = ChildEtcd(lambda: Path(program))
    await runner.start(EtcdStart(name, client, peer, Path(data), Path(log), f"{name}={peer}", "new", "t"))
    print(f"child {runner._process.pid}", flush=True)
    await runner.wait()
asyncio.run(main())
"""


def test_it_does_not_outlive_a_killed_owner(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    start = etcd_start(loopback_net, tmp_path)
    arguments = [start.name, start.client_url, start.peer_url, str(start.data_dir), str(start.log_dir)]
    command = [sys.executable, "-c", OWNER, str(find_etcd().path), *arguments]
    with Program(command, env=python_environment()) as owner:
        etcd_pid = int(owner.wait_line("child ").split()[1])
        member = EtcdMember("h1", loopback_net.host(1), start.data_dir)
        wait_until(member.has_leader, "etcd serves")
        owner.kill()
        wait_until(lambda: not alive(etcd_pid), "etcd ended with its owner")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().split(")")[1].strip().startswith("Z")
