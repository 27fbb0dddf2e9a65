"""Shards as real processes: started, drained, stopped, crashed."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from controlplane.agent.shards.life import Phase
from controlplane.agent.shards.process import identify, is_running
from controlplane.agent.shards.supervisor import ShardRefusedError, Supervisor
from tests.support.addresses import LoopbackNet
from tests.support.shards import engine_spec, get, log_text, phase, post, supervisor, worker_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_polls")]


async def test_a_shard_starts_serves_and_stops(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, env={"PATH": "/usr/bin", "MODEL": "m"})
    async with supervisor(shard_root) as keeper:
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


async def test_it_is_running_only_once_it_is_healthy(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--warm-up", "1")
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        await eventually(lambda: keeper.shards[0].engine is not None, "the engine runs", 30)
        assert keeper.shards[0].status.phase is Phase.STARTING
        await phase(keeper, "m-0-0", Phase.RUNNING)


@pytest.mark.parametrize(
    ("path", "code", "word"), [("/crash", 41, "something that can't be"), ("/abort", 134, "POST /abort")]
)
async def test_a_crash_tells_its_code_and_last_words(
    shard_root: Path, loopback_net: LoopbackNet, path: str, code: int, word: str
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await post(spec, path)
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert shard.status.exit_code == code
        assert shard.status.error in {"ended by itself with exit code 41", "ended by SIGABRT"}
        assert path == "/abort" or word in shard.status.last_output


async def test_a_program_that_is_not_there_fails_with_its_reason(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    async with supervisor(shard_root) as keeper:
        await keeper.start(engine_spec(loopback_net, argv=("/nowhere/engine",)))
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert "/nowhere/engine can't be started" in shard.status.error


async def test_one_that_ignores_sigterm_is_killed_with_all_its_children(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--ignore-term", "--spawn", stop_seconds=0.3)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        worker = identify(await worker_of(shard))
        assert worker is not None
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        await eventually(lambda: not is_running(worker), "the worker is gone")
        assert shard.status.exit_code == 128 + signal.SIGKILL


async def test_a_crash_takes_the_workers_in_other_sessions_with_it(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--spawn")
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        worker = identify(await worker_of(shard))
        await post(spec, "/crash")
        await phase(keeper, "m-0-0", Phase.FAILED)
        assert worker is not None
        await eventually(lambda: not is_running(worker), "the worker is gone")


async def test_a_killed_holder_takes_its_engine_with_it(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--spawn")
    async with supervisor(shard_root) as keeper:
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
    shard_root: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.agent.shards.shard.HOLDER_MARGIN", 0.5)
    spec = engine_spec(loopback_net, stop_seconds=0.2)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        assert shard.state is not None
        os.kill(shard.state.holder.pid, signal.SIGSTOP)
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        engine = shard.engine
        assert engine is not None
        await eventually(lambda: not is_running(engine), "the engine is gone")


async def test_drain_by_http_lets_a_request_end(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, drain_path="/drain")
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        request = asyncio.create_task(post(spec, "/v1/completions?seconds=1"))
        await eventually(lambda: "under way" in log_text(shard), "it serves the request")
        await keeper.drain("m-0-0", 0, 60.0)
        assert shard.status.phase is Phase.DRAINING
        assert await request == 200
        await phase(keeper, "m-0-0", Phase.STOPPED)
        assert "POST /drain" in shard.status.last_output


async def test_drain_without_a_way_waits_for_the_connections(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        _, writer = await asyncio.open_connection(spec.address, spec.port)
        await keeper.drain("m-0-0", 0, 60.0)
        await asyncio.sleep(0.5)
        assert keeper.shards[0].status.phase is Phase.DRAINING
        writer.close()
        await phase(keeper, "m-0-0", Phase.STOPPED)


async def test_a_drain_that_takes_too_long_ends_in_a_stop_also_over_a_restart(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    spec = engine_spec(
        loopback_net, drain_signal="SIGUSR1", argv=("/bin/sh", "-c", "trap '' USR1; sleep 600")
    )
    spec = replace(spec, health_path="")
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        await keeper.drain("m-0-0", 0, 2.0)
    async with supervisor(shard_root) as keeper:
        assert keeper.shards[0].status.phase is Phase.DRAINING
        await phase(keeper, "m-0-0", Phase.STOPPED)


async def test_drain_by_signal_ends_with_the_engine(shard_root: Path, loopback_net: LoopbackNet) -> None:
    script = "trap 'echo drained; exit 0' USR1; while :; do sleep 0.1; done"
    spec = engine_spec(loopback_net, drain_signal="SIGUSR1", argv=("/bin/sh", "-c", script), health_path="")
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        await keeper.drain("m-0-0", 0, 60.0)
        shard = await phase(keeper, "m-0-0", Phase.STOPPED)
        assert shard.status.exit_code == 0
        assert shard.status.last_output == "drained"


async def test_repeated_and_old_orders(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, generation=5)
    async with supervisor(shard_root) as keeper:
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


async def test_a_gpu_or_a_port_is_never_given_twice(shard_root: Path, loopback_net: LoopbackNet) -> None:
    first = engine_spec(loopback_net, gpu_uuids=("GPU-1", "GPU-2"))
    async with supervisor(shard_root) as keeper:
        await keeper.start(first)
        with pytest.raises(ShardRefusedError, match="GPU-2 is used by shard m-0-0"):
            await keeper.start(engine_spec(loopback_net, "m-1-0", gpu_uuids=("GPU-2",)))
        with pytest.raises(ShardRefusedError, match=f"port {first.port} is used"):
            await keeper.start(replace(engine_spec(loopback_net, "m-1-0"), port=first.port))


async def test_a_stop_in_the_middle_of_the_start(shard_root: Path, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net, "m-0-0", "--warm-up", "600")
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)


async def test_an_engine_that_floods_its_output_obeys_a_stop_and_fills_no_disk(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    """It writes faster than its output is kept, without a line's end."""
    flood = ("/bin/sh", "-c", "exec tr '\\0' x < /dev/zero")
    spec = engine_spec(
        loopback_net, argv=flood, health_path="", stop_seconds=60.0, log_bytes=1 << 16, log_files=2
    )
    async with supervisor(shard_root) as keeper:
        await keeper.start(spec)
        shard = await phase(keeper, "m-0-0", Phase.RUNNING)
        await eventually(lambda: shard.directory.log.with_name("output.log.1").exists(), "it floods")
        await keeper.stop("m-0-0")
        await phase(keeper, "m-0-0", Phase.STOPPED)
        assert shard.status.exit_code == 128 + signal.SIGTERM
        kept = sum(path.stat().st_size for path in shard.directory.path.glob("output.log*"))
        assert 0 < kept <= 2 << 16
        assert set(shard.status.last_output) == {"x"}


async def test_starts_and_stops_that_come_together_are_done_in_their_order(
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    told: list[tuple[str, int]] = []
    keeper = Supervisor(shard_root, lambda shard: told.append((shard.spec.shard_id, shard.spec.generation)))
    await keeper.adopt()
    specs = [engine_spec(loopback_net, name, "--warm-up", "600", gpu_uuids=("GPU-1",)) for name in ("a", "b")]
    try:
        starts = [asyncio.create_task(keeper.start(spec)) for spec in specs]
        await asyncio.sleep(0)
        stop = asyncio.create_task(keeper.stop("a", generation=1))
        first, second = await asyncio.gather(*starts, return_exceptions=True)
        assert first is None
        assert isinstance(second, ShardRefusedError)
        assert await stop, "the stop found what was being started"
        await phase(keeper, "a", Phase.STOPPED)
        await keeper.start(replace(specs[0], generation=2))
        told.clear()
        with pytest.raises(ShardRefusedError, match="start 2 of it still runs"):
            await keeper.start(replace(specs[0], generation=3))
        assert told == [("a", 2)], "who asks for another start is told of the one that runs"
    finally:
        await keeper.close()
