"""Shards on a disk that is full: no engine ends by it, and how one ended is known all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.agent.shards.life import Phase
from controlplane.agent.shards.record import ShardDir
from controlplane.agent.shards.supervisor import ShardRefusedError
from controlplane.agent.weights.fetch import FetchError, fetch, parse_source
from tests.support.addresses import LoopbackNet
from tests.support.shards import end_all, engine_spec, get, phase, post, supervisor
from tests.support.small_disk import Disk, small_disk
from tests.support.weights_store import digest, weights_store

pytestmark = [pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", 4) as made:
        yield made
        end_all(made.path / "shards")


async def test_a_crash_is_on_record_with_code_and_last_words(disk: Disk, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(disk.path / "shards") as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        disk.fill()
        await post(spec, "/crash")
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert (shard.status.exit_code, shard.status.error) == (41, "ended by itself with exit code 41")
        assert "the engine found something that can't be" in shard.status.last_output


async def test_a_shard_can_be_stopped_with_its_grace(disk: Disk, loopback_net: LoopbackNet) -> None:
    async with supervisor(disk.path / "shards") as keeper:
        await keeper.start(engine_spec(loopback_net))
        await phase(keeper, "m-0-0", Phase.RUNNING)
        disk.fill()
        assert await keeper.stop("m-0-0")
        shard = await phase(keeper, "m-0-0", Phase.STOPPED)
        assert shard.status.exit_code == 128 + signal.SIGTERM


async def test_an_engine_that_writes_goes_on_and_is_adopted(disk: Disk, loopback_net: LoopbackNet) -> None:
    spec = engine_spec(loopback_net)
    async with supervisor(disk.path / "shards") as keeper:
        await keeper.start(spec)
        await phase(keeper, "m-0-0", Phase.RUNNING)
        pid = (await get(spec, "/environment"))["pid"]
        disk.fill()
        for _ in range(200):  # each is a line of output
            await get(spec, "/environment")
    async with supervisor(disk.path / "shards") as keeper:
        shard = keeper.find("m-0-0")
        assert shard is not None
        assert (await get(spec, "/environment"))["pid"] == pid
        disk.free()
        await get(spec, "/environment")
        assert b"GET /environment" in ShardDir(disk.path / "shards" / "m-0-0").log.read_bytes()
        os.kill(pid, 0)


async def test_a_start_is_refused_and_leaves_nothing_that_runs(disk: Disk, loopback_net: LoopbackNet) -> None:
    async with supervisor(disk.path / "shards") as keeper:
        disk.fill()
        with pytest.raises(ShardRefusedError, match="No space left on device"):
            await keeper.start(engine_spec(loopback_net))
        assert keeper.running == []
    async with supervisor(disk.path / "shards") as keeper:
        assert keeper.problems == []
        assert list((disk.path / "shards").iterdir()) == []
        disk.free()
        await keeper.start(engine_spec(loopback_net))
        await phase(keeper, "m-0-0", Phase.RUNNING)


async def test_weights_that_do_not_fit_give_the_space_back(tmp_path: Path) -> None:
    with weights_store() as store, small_disk(tmp_path / "disk", 2) as disk:
        source = parse_source(store.url + digest(), disk.path)
        with pytest.raises(FetchError, match="No space left on device"):
            await fetch(source, lambda done, total: None)
        assert os.statvfs(disk.path).f_bavail > 400
        assert not source.path.exists()
