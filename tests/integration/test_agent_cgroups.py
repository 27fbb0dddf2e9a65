"""Engines in their cgroups, where this machine has some to give."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.agent.discovery.disks import mount_points
from controlplane.agent.shards.life import Phase
from tests.support.addresses import LoopbackNet
from tests.support.shards import engine_spec, phase, supervisor
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_polls")]


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
    shard_root: Path, loopback_net: LoopbackNet, cgroup: Path
) -> None:
    async with supervisor(shard_root) as keeper:
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
    shard_root: Path, loopback_net: LoopbackNet
) -> None:
    async with supervisor(shard_root) as keeper:
        await keeper.start(engine_spec(loopback_net, cgroup="/sys/fs/cgroup/not-there"))
        shard = await phase(keeper, "m-0-0", Phase.FAILED)
        assert "can't be started" in shard.status.error
