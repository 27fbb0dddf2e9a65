"""Shards that outlive their agent: adopted, told, given up, by whatever records there are."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from controlplane.agent.shards.life import Phase
from controlplane.agent.shards.process import identify, is_running
from controlplane.agent.shards.record import SPEC, STATE
from controlplane.agent.shards.vigil import Patience
from tests.support.addresses import LoopbackNet
from tests.support.procs import ROOT
from tests.support.shards import engine_spec, get, log_text, phase, post, supervisor
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_polls")]


async def test_it_outlives_the_agent_and_is_adopted(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--chatter", "2000", log_bytes=64 * 1024, log_files=3)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        pid = (await phase(keeper, "m-0-0", Phase.RUNNING)).engine
    assert pid is not None
    assert is_running(pid)
    await get(spec, "/environment")  # its output goes on while no one attends
    async with supervisor(shard_root) as keeper:
        shard = keeper.find("m-0-0")
        assert shard is not None
        assert shard.status.phase is Phase.RUNNING
        assert shard.engine == pid
        await eventually(lambda: "GET /environment" in log_text(shard), "the request is in the log", 30)
        await post(spec, "/crash")
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert shard.status.exit_code == 41
    assert sorted(path.name for path in shard.directory.path.glob("output.log*")) == [
        "output.log",
        "output.log.1",
        "output.log.2",
    ]


async def test_what_ended_while_no_one_attended_is_told(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
    await post(spec, "/crash")
    async with supervisor(shard_root) as keeper:
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert shard.status.exit_code == 41
        assert not shard.intent.told


async def test_what_served_and_then_falls_silent_is_ended_as_failed_and_what_is_late_is_not(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    """One engine is suspended, which keeps its port open; the health of the other turns into errors."""
    silent, sick = engine_spec(loopback_net), engine_spec(loopback_net, "m-1-0")
    silent = replace(silent, stop_seconds=0.2)  # it can't obey
    async with supervisor(shard_root, Patience(interval=0.1, deadline=60.0, misses=3)) as keeper:
        await keeper.start(silent)
        await keeper.start(sick)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await phase(keeper, "m-1-0", Phase.RUNNING)
        assert shard.engine is not None
        os.kill(shard.engine.pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(shard.engine.pid, signal.SIGCONT)
        asked = log_text(shard).count("GET /health")
        await eventually(lambda: log_text(shard).count("GET /health") > asked + 3, "asked on")
        assert shard.status.phase is Phase.RUNNING
        assert await post(sick, "/sicken") == 200
        other = await phase(keeper, "m-1-0", Phase.FAILED)
        assert other.status.error.startswith("unresponsive: 3 health probes failed in a row")
        assert other.status.error.endswith("the last one: HTTP status 500")
        assert other.status.exit_code == 128 + signal.SIGTERM
        assert "serving on" in other.status.last_output
        os.kill(shard.engine.pid, signal.SIGSTOP)
    async with supervisor(shard_root, Patience(interval=0.1, deadline=0.3, misses=3)) as keeper:
        shard = await phase(keeper, "m-0-0", Phase.FAILED)  # also by the agent that adopted it
        assert shard.status.error.endswith("the last one: no answer within 0.3 s")
        assert shard.status.exit_code == 128 + signal.SIGKILL
    async with supervisor(shard_root) as keeper:
        again = await phase(keeper, "m-0-0", Phase.FAILED)
        assert again.status == shard.status


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\x00", b"[]", b'{"token": 3}', b'{"phase": "running"}'])
async def test_a_damaged_holder_record_does_not_lose_a_shard(
    shard_root: Path, loopback_net: LoopbackNet, damage: bytes
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    (shard.directory.path / STATE).write_bytes(damage)
    async with supervisor(shard_root) as keeper:
        again = keeper.find("m-0-0")
        assert again is not None
        assert again.status.phase is Phase.RUNNING
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)


@pytest.mark.parametrize(
    "damage", [b"", b'{"token": "x", "spec": {"argv": 3}}', b'{"token": "x", "spec": []}']
)
async def test_a_shard_without_its_order_is_ended_and_set_aside(
    shard_root: Path, loopback_net: LoopbackNet, damage: bytes
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        engine = shard.engine
    (shard.directory.path / SPEC).write_bytes(damage)
    async with supervisor(shard_root) as keeper:
        assert keeper.shards == []
        assert engine is not None
        await eventually(lambda: not is_running(engine), "the engine is ended", 30)
        assert "record is unusable" in keeper.problems[0]
        await keeper.start(engine_spec(loopback_net))
        await phase(keeper, "m-0-0", Phase.RUNNING)


async def test_a_reused_pid_is_never_signalled(shard_root: Path, loopback_net: LoopbackNet) -> None:
    """The record of an earlier boot names a pid that another process has now."""
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
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
        async with supervisor(shard_root) as keeper:
            again = await phase(keeper, "m-0-0", Phase.STOPPED)
            assert again.status.exit_code is None
        assert is_running(mine)
    finally:
        bystander.kill()
        await bystander.wait()


async def test_records_of_a_newer_version_are_read(shard_root: Path, loopback_net: LoopbackNet) -> None:
    """An agent that was taken back to an older version adopts what the newer one started."""
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    for name, key in ((SPEC, "spec"), (STATE, "engine")):
        path = shard.directory.path / name
        document = json.loads(path.read_text())
        document["added"] = document[key]["added"] = {"later": 1}
        path.write_text(json.dumps(document))
    async with supervisor(shard_root) as keeper:
        again = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert again.engine == shard.engine


async def test_an_upgrade_of_the_agents_files_harms_no_shard(
    shard_root: Path, loopback_net: LoopbackNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder goes on with the code that it began with, although none of that is there any more."""
    spec = engine_spec(loopback_net, "m-0-0", "--spawn", log_bytes=4096, log_files=2)
    installed = tmp_path / "installed"
    shutil.copytree(ROOT / "controlplane", installed / "controlplane")
    python = tmp_path / "python"
    path = f"{installed}:{Path(psutil.__file__).parents[1]}"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} -S "$@"\n')  # -S: no other copy
    python.chmod(0o755)
    async with supervisor(shard_root) as keeper:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(python))
            await keeper.start(spec)
            shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    assert shard.state is not None
    assert str(installed) in psutil.Process(shard.state.holder.pid).environ()["PYTHONPATH"]
    shutil.rmtree(installed)
    async with supervisor(shard_root) as keeper:
        again = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert again.engine == shard.engine
        for _ in range(3):  # more than one file of the log holds
            await get(spec, f"/environment?{'x' * 3000}")
        await eventually((again.directory.path / "output.log.1").exists, "the log is rotated")
        await post(spec, "/crash")
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert again.status.exit_code == 41
        assert "something that can't be" in again.status.last_output


async def test_two_supervisors_never_run_one_shard_twice(shard_root: Path, loopback_net: LoopbackNet) -> None:
    """A second holder of one directory leaves at once."""
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert shard.directory.holder_lives()
        assert shard.directory.lock() is None


async def test_one_that_was_given_up_is_ended_also_by_an_agent_that_asks_no_engine(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    """The agent that gave it up ended between writing that down and telling the holder."""
    async with supervisor(shard_root) as keeper:
        await keeper.start(engine_spec(loopback_net))
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
    shard.directory.write_intent(replace(shard.directory.intent(), unresponsive="unresponsive: 3"))
    async with supervisor(shard_root, Patience(misses=0)) as keeper:
        again = await phase(keeper, "m-0-0", Phase.FAILED)
        assert again.status.error == "unresponsive: 3"
        assert again.status.exit_code == 128 + signal.SIGTERM
