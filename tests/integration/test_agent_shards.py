"""Shards as real processes: started, drained, stopped, crashed, adopted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from controlplane.agent.discovery.disks import mount_points
from controlplane.agent.shards import shard as shard_module
from controlplane.agent.shards import web
from controlplane.agent.shards.life import Phase
from controlplane.agent.shards.process import identify, is_running
from controlplane.agent.shards.record import SPEC, STATE
from controlplane.agent.shards.supervisor import ShardRefusedError
from controlplane.agent.shards.vigil import Patience
from tests.support.addresses import LoopbackNet
from tests.support.procs import ROOT
from tests.support.shards import end_all, engine_spec, get, phase, post, supervisor
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are asked often whether they serve or are drained; what is asked is the same."""
    monkeypatch.setattr(web, "READY_POLL", 0.05)
    monkeypatch.setattr(shard_module, "DRAIN_POLL", 0.05)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shards"
    yield path
    end_all(path)


async def test_a_shard_starts_serves_and_stops(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, env={"PATH": "/usr/bin", "MODEL": "m"})
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        environment = (await get(spec, "/environment"))["environment"]
        assert environment["MODEL"] == "m"
        assert not [name for name in environment if name.startswith("AKV") and name != "AKV_SHARD_TOKEN"]
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        assert shard.state is not None
        assert not psutil.pid_exists(shard.state.holder.pid), "no zombie is left"
        assert shard.status.exit_code == 128 + signal.SIGTERM
        assert "serving on" in shard.status.last_output


async def test_it_is_running_only_once_it_is_healthy(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--warm-up", "1")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        await eventually(lambda: keeper.shards[0].engine is not None, "the engine runs", 30)
        assert keeper.shards[0].status.phase is Phase.STARTING
        await phase(keeper, "m-0-0", Phase.RUNNING)


@pytest.mark.parametrize(
    ("path", "code", "word"), [("/crash", 41, "something that can't be"), ("/abort", 134, "POST /abort")]
)
async def test_a_crash_tells_its_code_and_last_words(
    root: Path, loopback_net: LoopbackNet, path: str, code: int, word: str
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await post(spec, path)
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert shard.status.exit_code == code
        assert shard.status.error in {"ended by itself with exit code 41", "ended by SIGABRT"}
        assert path == "/abort" or word in shard.status.last_output


async def test_a_program_that_is_not_there_fails_with_its_reason(
    root: Path, loopback_net: LoopbackNet
) -> None:
    async with supervisor(root) as keeper:
        await keeper.start(engine_spec(loopback_net, argv=("/nowhere/engine",)))
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert "/nowhere/engine can't be started" in shard.status.error


async def test_one_that_ignores_sigterm_is_killed_with_all_its_children(
    root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--ignore-term", "--spawn", stop_seconds=0.3)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        found = re.search(r"worker (\d+)", shard.directory.log.read_text())
        assert found is not None
        worker = identify(int(found[1]))
        assert worker is not None
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        await eventually(lambda: not is_running(worker), "the worker is gone")
        assert shard.status.exit_code == 128 + signal.SIGKILL


async def test_a_crash_takes_the_workers_in_other_sessions_with_it(
    root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--spawn")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        found = re.search(r"worker (\d+)", shard.directory.log.read_text())
        assert found is not None
        worker = identify(int(found[1]))
        await post(spec, "/crash")
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert worker is not None
        await eventually(lambda: not is_running(worker), "the worker is gone")


async def test_it_outlives_the_agent_and_is_adopted(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--chatter", "2000", log_bytes=64 * 1024, log_files=3)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        pid = (await phase(keeper, "m-0-0", Phase.RUNNING)).engine
    assert pid is not None
    assert is_running(pid)
    await get(spec, "/environment")  # its output goes on while no one attends
    async with supervisor(root) as keeper:
        shard = keeper.find("m-0-0")
        assert shard is not None
        assert shard.status.phase is Phase.RUNNING
        assert shard.engine == pid
        log = shard.directory.log
        await eventually(lambda: "GET /environment" in log.read_text(), "the request is in the log", 30)
        await post(spec, "/crash")
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert shard.status.exit_code == 41
    assert sorted(path.name for path in shard.directory.path.glob("output.log*")) == [
        "output.log",
        "output.log.1",
        "output.log.2",
    ]


async def test_what_ended_while_no_one_attended_is_told(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
    await post(spec, "/crash")
    async with supervisor(root) as keeper:
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert shard.status.exit_code == 41
        assert not shard.intent.told


async def test_what_served_and_then_falls_silent_is_ended_as_failed_and_what_is_late_is_not(
    root: Path, loopback_net: LoopbackNet
) -> None:
    """One engine is suspended, which keeps its port open; the health of the other turns into errors."""
    silent, sick = engine_spec(loopback_net), engine_spec(loopback_net, "m-1-0")
    silent = replace(silent, stop_seconds=0.2)  # it can't obey
    async with supervisor(root, Patience(interval=0.1, deadline=60.0, misses=3)) as keeper:
        await keeper.start(silent)
        await keeper.start(sick)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await phase(keeper, "m-1-0", Phase.RUNNING)
        assert shard.engine is not None
        os.kill(shard.engine.pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(shard.engine.pid, signal.SIGCONT)
        asked = shard.directory.log.read_text().count("GET /health")
        await eventually(lambda: shard.directory.log.read_text().count("GET /health") > asked + 3, "asked on")
        assert shard.status.phase is Phase.RUNNING
        assert await post(sick, "/sicken") == 200
        other = await phase(keeper, "m-1-0", Phase.FAILED)
        assert other.status.error.startswith("unresponsive: 3 health probes failed in a row")
        assert other.status.error.endswith("the last one: HTTP status 500")
        assert other.status.exit_code == 128 + signal.SIGTERM
        assert "serving on" in other.status.last_output
        os.kill(shard.engine.pid, signal.SIGSTOP)
    async with supervisor(root, Patience(interval=0.1, deadline=0.3, misses=3)) as keeper:
        shard = await phase(keeper, "m-0-0", Phase.FAILED)  # also by the agent that adopted it
        assert shard.status.error.endswith("the last one: no answer within 0.3 s")
        assert shard.status.exit_code == 128 + signal.SIGKILL
    async with supervisor(root) as keeper:
        again = await phase(keeper, "m-0-0", Phase.FAILED)
        assert again.status == shard.status


async def test_a_killed_holder_takes_its_engine_with_it(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--spawn")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert shard.state is not None
        assert shard.engine is not None
        os.kill(shard.state.holder.pid, signal.SIGKILL)
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert "holder was killed" in shard.status.error
        engine = shard.engine
        await eventually(lambda: not is_running(engine), "the engine is gone", 30)


async def test_a_suspended_holder_can_be_stopped(
    root: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.agent.shards.shard.HOLDER_MARGIN", 0.5)
    spec = engine_spec(loopback_net, stop_seconds=0.2)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert shard.state is not None
        os.kill(shard.state.holder.pid, signal.SIGSTOP)
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        engine = shard.engine
        assert engine is not None
        await eventually(lambda: not is_running(engine), "the engine is gone")


async def test_drain_by_http_lets_a_request_end(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, drain_path="/drain")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        request = asyncio.create_task(post(spec, "/v1/completions?seconds=1"))
        await eventually(lambda: "under way" in shard.directory.log.read_text(), "it serves the request")
        await keeper.drain("m-0-0", 0, 60.0)
        assert shard.status.phase is Phase.DRAINING
        assert await request == 200
        await phase(keeper, "m-0-0", Phase.STOPPED)
        assert "POST /drain" in shard.status.last_output


async def test_drain_without_a_way_waits_for_the_connections(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        _, writer = await asyncio.open_connection(spec.address, spec.port)
        await keeper.drain("m-0-0", 0, 60.0)
        await asyncio.sleep(0.5)
        assert keeper.shards[0].status.phase is Phase.DRAINING
        writer.close()
        await phase(keeper, "m-0-0", Phase.STOPPED)


async def test_a_drain_that_takes_too_long_ends_in_a_stop_also_over_a_restart(
    root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(
        loopback_net, drain_signal="SIGUSR1", argv=("/bin/sh", "-c", "trap '' USR1; sleep 600")
    )
    spec = replace(spec, health_path="")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        await keeper.drain("m-0-0", 0, 2.0)
    async with supervisor(root) as keeper:
        assert keeper.shards[0].status.phase is Phase.DRAINING
        await phase(keeper, "m-0-0", Phase.STOPPED)


async def test_drain_by_signal_ends_with_the_engine(root: Path, loopback_net: LoopbackNet) -> None:
    script = "trap 'echo drained; exit 0' USR1; while :; do sleep 0.1; done"
    spec = engine_spec(loopback_net, drain_signal="SIGUSR1", argv=("/bin/sh", "-c", script), health_path="")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        await keeper.drain("m-0-0", 0, 60.0)
        shard = await phase(keeper, "m-0-0", Phase.STOPPED)
        assert shard.status.exit_code == 0
        assert shard.status.last_output == "drained"


async def test_repeated_and_old_orders(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, generation=5)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await keeper.start(spec)
        assert keeper.shards == [shard]
        with pytest.raises(ShardRefusedError, match="older than 5"):
            await keeper.start(replace(spec, generation=4))
        with pytest.raises(ShardRefusedError, match="stop it first"):
            await keeper.start(replace(spec, generation=6))
        await keeper.stop("m-0-0", generation=4)
        await keeper.stop("unknown")
        assert shard.status.phase is Phase.RUNNING
        await keeper.stop("m-0-0", generation=5)
        await keeper.stop("m-0-0", generation=5)
        await phase(keeper, "m-0-0", Phase.STOPPED)
        await keeper.start(replace(spec, generation=6))
        await phase(keeper, "m-0-0", Phase.RUNNING)


async def test_a_gpu_or_a_port_is_never_given_twice(root: Path, loopback_net: LoopbackNet) -> None:
    first = engine_spec(loopback_net, gpu_uuids=("GPU-1", "GPU-2"))
    async with supervisor(root) as keeper:
        await keeper.start(first)
        with pytest.raises(ShardRefusedError, match="GPU-2 is used by shard m-0-0"):
            await keeper.start(engine_spec(loopback_net, "m-1-0", gpu_uuids=("GPU-2",)))
        with pytest.raises(ShardRefusedError, match=f"port {first.port} is used"):
            await keeper.start(replace(engine_spec(loopback_net, "m-1-0"), port=first.port))


async def test_a_stop_in_the_middle_of_the_start(root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--warm-up", "600")
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"[]", b'{"token": 3}', b'{"phase": "running"}'])
async def test_a_damaged_holder_record_does_not_lose_a_shard(
    root: Path, loopback_net: LoopbackNet, damage: bytes
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    (shard.directory.path / STATE).write_bytes(damage)
    async with supervisor(root) as keeper:
        again = keeper.find("m-0-0")
        assert again is not None
        assert again.status.phase is Phase.RUNNING
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)


@pytest.mark.parametrize(
    "damage", [b"", b'{"token": "x", "spec": {"argv": 3}}', b'{"token": "x", "spec": []}']
)
async def test_a_shard_without_its_order_is_ended_and_set_aside(
    root: Path, loopback_net: LoopbackNet, damage: bytes
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        engine = shard.engine
    (shard.directory.path / SPEC).write_bytes(damage)
    async with supervisor(root) as keeper:
        assert keeper.shards == []
        assert engine is not None
        await eventually(lambda: not is_running(engine), "the engine is ended", 30)
        assert "record is unusable" in keeper.problems[0]
        await keeper.start(engine_spec(loopback_net))
        await phase(keeper, "m-0-0", Phase.RUNNING)


async def test_a_reused_pid_is_never_signalled(root: Path, loopback_net: LoopbackNet) -> None:
    """The record of an earlier boot names a pid that another process has now."""
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
    bystander = await asyncio.create_subprocess_exec("/bin/sleep", "600")
    try:
        state = shard.state
        assert state is not None
        mine = identify(bystander.pid)
        assert mine is not None
        stolen = replace(mine, boot_id="another boot")
        forged = replace(state, phase="running", exit=None, holder=stolen, engine=stolen)
        shard.directory.write_state(forged)
        async with supervisor(root) as keeper:
            again = await phase(keeper, "m-0-0", Phase.STOPPED)
            assert again.status.exit_code is None
        assert is_running(mine)
    finally:
        bystander.kill()
        await bystander.wait()


async def test_records_of_a_newer_version_are_read(root: Path, loopback_net: LoopbackNet) -> None:
    """An agent that was taken back to an older version adopts what the newer one started."""
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    for name, key in ((SPEC, "spec"), (STATE, "engine")):
        path = shard.directory.path / name
        document = json.loads(path.read_text())
        document["added"] = document[key]["added"] = {"later": 1}
        path.write_text(json.dumps(document))
    async with supervisor(root) as keeper:
        again = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert again.engine == shard.engine


async def test_an_upgrade_of_the_agents_files_harms_no_shard(
    root: Path, loopback_net: LoopbackNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder goes on with the code that it began with, although none of that is there any more."""
    spec = engine_spec(loopback_net, "m-0-0", "--spawn", log_bytes=4096, log_files=2)
    installed = tmp_path / "installed"
    shutil.copytree(ROOT / "controlplane", installed / "controlplane")
    python = tmp_path / "python"
    path = f"{installed}:{Path(psutil.__file__).parents[1]}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} -S "$@"\n')  # -S: no other copy
    python.chmod(0o755)
    async with supervisor(root) as keeper:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(python))
            await keeper.start(spec)
            shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    assert shard.state is not None
    assert str(installed) in psutil.Process(shard.state.holder.pid).environ()["PYTHONPATH"]
    shutil.rmtree(installed)
    async with supervisor(root) as keeper:
        again = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert again.engine == shard.engine
        for _ in range(3):  # more than one file of the log holds
            await get(spec, f"/environment?{'x' * 3000}")
        await eventually((again.directory.path / "output.log.1").exists, "the log is rotated")
        await post(spec, "/crash")
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert again.status.exit_code == 41
        assert "something that can't be" in again.status.last_output


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup v2 directory of the test's own; skips where this machine has none to give."""
    mounts = (path for path, kind in mount_points(Path("/proc")).items() if kind == "cgroup2")
    mount = next(mounts, None)
    if mount is None:
        pytest.skip("no cgroup v2 is mounted here")
    path = mount / f"akv-test-{secrets.token_hex(4)}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield path
    path.rmdir()


async def test_an_engine_joins_its_cgroup_and_its_holder_does_not(
    root: Path, loopback_net: LoopbackNet, cgroup: Path
) -> None:
    async with supervisor(root) as keeper:
        await keeper.start(engine_spec(loopback_net, "m-0-0", "--spawn", cgroup=str(cgroup)))
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        pids = (cgroup / "cgroup.procs").read_text().split()
        assert shard.engine is not None
        assert shard.state is not None
        assert str(shard.engine.pid) in pids
        assert len(pids) == 2
        assert str(shard.state.holder.pid) not in pids
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        await eventually(lambda: (cgroup / "cgroup.procs").read_text() == "", "the cgroup is empty")


async def test_an_engine_that_cannot_join_its_cgroup_is_not_started(
    root: Path, loopback_net: LoopbackNet
) -> None:
    async with supervisor(root) as keeper:
        await keeper.start(engine_spec(loopback_net, cgroup="/sys/fs/cgroup/not-there"))
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert "can't be started" in shard.status.error


async def test_two_supervisors_never_run_one_shard_twice(root: Path, loopback_net: LoopbackNet) -> None:
    """A second holder of one directory leaves at once."""
    spec = engine_spec(loopback_net)
    async with supervisor(root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert shard.directory.holder_lives()
        assert shard.directory.lock() is None
