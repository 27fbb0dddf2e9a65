"""What each shard uses of the machine, between two looks."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil
from akv.v1 import agent_pb2

from controlplane.agent.shards.process import is_running
from controlplane.agent.shards.shard import Shard


class LoadMeter:
    """Processor use since the last look, and memory now, of each shard with everything that it started."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], float] = {}
        self._looked = 0.0

    def read(self, shards: Iterable[Shard]) -> list[agent_pb2.ShardLoad]:
        """Figures of all that run; the first look has no processor use."""
        now = time.monotonic()
        passed = now - self._looked if self._looked else 0.0
        used: dict[tuple[int, int], float] = {}
        loads = [self._one(shard, passed, used) for shard in shards if shard.engine is not None]
        self._before, self._looked = used, now
        return loads

    def _one(self, shard: Shard, passed: float, used: dict[tuple[int, int], float]) -> agent_pb2.ShardLoad:
        seconds, resident = 0.0, 0
        for process in _family(shard):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
                    identity = (process.pid, int(process.create_time() * 100))
            except psutil.Error:
                continue
            used[identity] = times.user + times.system
            # One that is new since the last look used all its time since then.
            seconds += used[identity] - self._before.get(identity, 0.0)
            resident += memory.rss
        return agent_pb2.ShardLoad(
            shard_id=shard.spec.shard_id,
            cpu_cores=max(0.0, seconds) / passed if passed else 0.0,
            memory_rss_bytes=resident,
        )


def _family(shard: Shard) -> list[psutil.Process]:
    engine = shard.engine
    if engine is None or not is_running(engine):
        return []
    try:
        process = psutil.Process(engine.pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []
