"""Starts of shards whose weights are still on their way."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from akv.v1 import agent_pb2

from controlplane.agent.messages import event_of
from controlplane.agent.sampler import in_thread
from controlplane.agent.shards.life import Phase, Status
from controlplane.agent.shards.orders import NodeMeans, spec_of
from controlplane.agent.shards.spec import ShardSpec, SpecError
from controlplane.agent.shards.supervisor import ShardRefusedError, Supervisor
from controlplane.agent.waiting import WaitingStart, WaitingStarts
from controlplane.agent.weights.cache import WeightCache
from controlplane.agent.weights.fetch import FetchError, Source
from controlplane.base.logging import get_logger

PROGRESS_SECONDS = 2.0
_PATH = re.compile(r"/[^\s,;:='\"]*")

log = get_logger("starts")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A start that waits for its weights."""

    start: WaitingStart
    task: asyncio.Task[None]

    @property
    def spec(self) -> ShardSpec:
        """What is to be started."""
        return self.start.spec


class Starts:
    """Turns orders into shards. What waits is on record: after a restart of the agent it goes on.

    `means` tells what the node can give now; `tell` sends, and is False where nobody listens.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        weights: WeightCache,
        records: WaitingStarts,
        means: Callable[[], NodeMeans],
        prepare: Callable[[ShardSpec], ShardSpec],
        tell: Callable[[agent_pb2.AgentMessage], bool],
    ) -> None:
        self._supervisor = supervisor
        self._weights = weights
        self._records = records
        self._means = means
        self._prepare = prepare
        self._tell = tell
        self._waiting: dict[str, Waiting] = {}
        self._launching: set[str] = set()
        self._untold: dict[str, agent_pb2.AgentMessage] = {}

    @property
    def waiting(self) -> list[ShardSpec]:
        """What waits."""
        return [waiting.spec for waiting in self._waiting.values()]

    def running(self) -> list[agent_pb2.RunningShard]:
        """What waits, as lines of a Register."""
        now = time.time()
        return [
            agent_pb2.RunningShard(
                shard_id=waiting.spec.shard_id,
                replica_id=waiting.spec.replica_id,
                model=waiting.spec.model,
                profile=waiting.spec.profile,
                generation=waiting.spec.generation,
                state=agent_pb2.SHARD_STATE_STARTING,
                port=waiting.spec.port,
                gpu_uuids=waiting.spec.gpu_uuids,
                age_seconds=max(0.0, now - waiting.start.began),
            )
            for waiting in self._waiting.values()
        ]

    def weights_in_use(self) -> list[str]:
        """Paths that shards run with or will: their weights, and whatever their commands name."""
        specs = [shard.spec for shard in self._supervisor.running] + self.waiting
        weights = [spec.weights for spec in specs if spec.weights]
        return weights + [path for spec in specs for word in spec.argv[1:] for path in paths_in(word)]

    async def resume(self) -> None:
        """Go on with what waited when the agent ended."""
        for start in await asyncio.to_thread(self._records.read):
            spec = start.spec
            known = self._supervisor.find(spec.shard_id)
            if known is not None and known.spec.generation >= spec.generation:
                self._records.remove(spec.shard_id)  # it was started just before the agent ended
                continue
            log.info("Start goes on", shard=spec.shard_id, generation=spec.generation)
            self._begin(start, self._go_on(start))

    async def start(self, order: agent_pb2.StartShard) -> None:
        """Start it, now or once its weights are there. Raises SpecError, ShardRefusedError."""
        waiting = self._waiting.get(order.shard_id)
        if waiting is not None:
            if order.generation <= waiting.spec.generation:
                return
            self.give_up(order.shard_id, waiting.spec.generation)
        path, source = await in_thread(lambda: self._weights.place(order.weights))
        known = self._supervisor.find(order.shard_id)
        if known is not None and known.spec.generation == order.generation:
            await self._supervisor.start(known.spec)  # a repeated order; its port is chosen already
            return
        spec = self._prepare(spec_of(order, self._means(), path))
        if source is None:
            await self._supervisor.start(spec)
            return
        start = WaitingStart(spec, order.weights, time.time())
        try:
            await asyncio.to_thread(self._records.put, start)
        except OSError as error:
            raise ShardRefusedError(f"its record can't be written: {error}") from error
        self._begin(start, self._fetch(spec, source))

    def give_up(self, shard_id: str, generation: int) -> bool:
        """Cancel a start that waits; False when none does: what is launched is the supervisor's to end."""
        waiting = self._waiting.get(shard_id)
        if waiting is None or (generation and generation != waiting.spec.generation):
            return False
        if shard_id in self._launching:
            return False
        del self._waiting[shard_id]
        waiting.task.cancel()
        self._records.remove(shard_id)
        self._tell(event_of(waiting.spec, Status(Phase.STOPPED)))
        return True

    def tell_again(self) -> None:
        """A leader listens: the failures that none heard of."""
        self._untold = {shard: event for shard, event in self._untold.items() if not self._tell(event)}

    async def close(self) -> None:
        """Cancel what waits; the records stay."""
        tasks = [waiting.task for waiting in self._waiting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, start: WaitingStart, work: Coroutine[Any, Any, None]) -> None:
        spec = start.spec
        task = asyncio.create_task(work, name=f"fetch-{spec.shard_id}")
        self._waiting[spec.shard_id] = Waiting(start, task)
        task.add_done_callback(lambda done: self._done(spec, done))

    async def _go_on(self, start: WaitingStart) -> None:
        """As an earlier life of the agent would have."""
        spec = start.spec
        try:
            _, source = await in_thread(lambda: self._weights.place(start.source))
            spec = self._prepare(spec)
        except SpecError as error:
            self._fail(spec, str(error))
            return
        await self._fetch(spec, source)

    async def _fetch(self, spec: ShardSpec, source: Source | None) -> None:
        """Fetch and start; what is there already (source None) is only started."""
        told = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if source is not None and (now - told >= PROGRESS_SECONDS or done == total):
                told = now
                self._tell(_progress(spec, source, done, total))

        try:
            if source is not None:
                await self._weights.fetch(source, progress)
            self._launching.add(spec.shard_id)
            await self._supervisor.start(spec)
        except (FetchError, SpecError, ShardRefusedError) as error:
            self._fail(spec, str(error))
        else:
            self._records.remove(spec.shard_id)
        finally:
            self._launching.discard(spec.shard_id)

    def _fail(self, spec: ShardSpec, reason: str) -> None:
        log.warning("Start failed", shard=spec.shard_id, reason=reason)
        self._records.remove(spec.shard_id)
        event = event_of(spec, Status(Phase.FAILED, reason))
        if not self._tell(event):
            self._untold[spec.shard_id] = event

    def _done(self, spec: ShardSpec, task: asyncio.Task[None]) -> None:
        waiting = self._waiting.get(spec.shard_id)
        if waiting is not None and waiting.task is task:
            del self._waiting[spec.shard_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("Start failed", shard=spec.shard_id, exc_info=error)


def paths_in(word: str) -> set[str]:
    """Absolute paths that a word of a command may name, as `/a` and `/a/b,c` in `--x=/a/b,c`."""
    begin = word.find("/")
    return {word[begin:], *_PATH.findall(word)} if begin >= 0 else set()


def _progress(spec: ShardSpec, source: Source, done: int, total: int) -> agent_pb2.AgentMessage:
    return agent_pb2.AgentMessage(
        shard_progress=agent_pb2.ShardProgress(
            shard_id=spec.shard_id,
            replica_id=spec.replica_id,
            generation=spec.generation,
            source=source.url,
            bytes_done=done,
            bytes_total=total,
        )
    )
