"""All shards of this node: started, adopted after a restart of the agent, drained, stopped."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.agent.shards.launch import find_holder, kill_by_token, wait_gone
from controlplane.agent.shards.process import send_signal
from controlplane.agent.shards.record import HolderState, RecordError, ShardDir
from controlplane.agent.shards.shard import Shard
from controlplane.agent.shards.spec import SHARD_ID, ShardSpec
from controlplane.agent.shards.vigil import Patience
from controlplane.base.logging import get_logger

KEPT_ENDED = 32
UNREADABLE = ".unreadable-"
UNREADABLE_SECONDS = 20.0

log = get_logger("shards")


class ShardRefusedError(Exception):
    """An order that is not carried out; the message is for the leader."""


class Supervisor:
    """The shards below `root`. `changed` is called after each change of a shard's status."""

    def __init__(
        self, root: Path, changed: Callable[[Shard], None], patience: Patience | None = None
    ) -> None:
        self._root = root
        self._changed = changed
        self._patience = patience or Patience()
        self._shards: dict[str, Shard] = {}
        self._tasks: dict[Shard, asyncio.Task[None]] = {}
        # From a start's look at the other shards until it is one of them.
        self._starting = asyncio.Lock()
        self.problems: list[str] = []

    @property
    def shards(self) -> list[Shard]:
        """Every shard that is known, ended ones too."""
        return list(self._shards.values())

    @property
    def running(self) -> list[Shard]:
        """Shards that have not ended."""
        return [shard for shard in self._shards.values() if not shard.status.phase.ended]

    def find(self, shard_id: str) -> Shard | None:
        """The shard of that id."""
        return self._shards.get(shard_id)

    async def adopt(self) -> None:
        """Take up every shard that an earlier life of the agent left. Raises OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._root.iterdir()):
            if path.is_dir() and not path.is_symlink() and SHARD_ID.fullmatch(path.name):
                await self._adopt_one(ShardDir(path))
        self._prune()

    async def start(self, spec: ShardSpec) -> None:
        """Start it; a repeated order changes nothing. Raises ShardRefusedError."""
        async with self._starting:
            old = self._shards.get(spec.shard_id)
            if old is not None and old.spec.generation >= spec.generation:
                if old.spec.generation > spec.generation:
                    raise ShardRefusedError(f"start {spec.generation} is older than {old.spec.generation}")
                self._changed(old)
                return
            self._refuse_conflicts(spec)
            token = secrets.token_hex(16)
            directory = ShardDir(self._root / spec.shard_id)
            try:
                await asyncio.to_thread(directory.create, spec, token)
            except OSError as error:
                raise ShardRefusedError(f"its record can't be written: {error}") from error
            log.info("Shard starts", shard=spec.shard_id, generation=spec.generation, command=spec.argv[0])
            self._keep(Shard(directory, spec, token, self._changed, self._patience), launch=True)
        self._prune()

    async def stop(self, shard_id: str, generation: int = 0) -> bool:
        """Stop it; False when no such start of it is here any more."""
        shard = await self._wanted(shard_id, generation)
        if shard is not None:
            await shard.stop()
        return shard is not None

    async def drain(self, shard_id: str, generation: int, seconds: float) -> bool:
        """Drain it, as `stop`."""
        shard = await self._wanted(shard_id, generation)
        if shard is not None:
            await shard.drain(seconds)
        return shard is not None

    async def close(self) -> None:
        """Let go of all shards; they go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wanted(self, shard_id: str, generation: int) -> Shard | None:
        async with self._starting:  # a start before this order is under way: it is to be found
            shard = self._shards.get(shard_id)
        if shard is None or (generation and shard.spec.generation != generation):
            return None
        if shard.status.phase.ended:
            self._changed(shard)  # a leader that asks does not know it yet
            return None
        return shard

    def _refuse_conflicts(self, spec: ShardSpec) -> None:
        for shard in self.running:
            if shard.spec.shard_id == spec.shard_id:
                self._changed(shard)  # a leader that asks for another start does not know of this one
                raise ShardRefusedError(f"start {shard.spec.generation} of it still runs: stop it first")
            shared = set(shard.spec.gpu_uuids) & set(spec.gpu_uuids)
            if shared:
                raise ShardRefusedError(f"GPU {min(shared)} is used by shard {shard.spec.shard_id}")
            if spec.port and shard.spec.port == spec.port and shard.spec.address == spec.address:
                raise ShardRefusedError(f"port {spec.port} is used by shard {shard.spec.shard_id}")

    async def _adopt_one(self, directory: ShardDir) -> None:
        try:
            spec, token = _order_of(directory)
        except RecordError as error:
            if directory.is_unborn():
                shutil.rmtree(directory.path, ignore_errors=True)
            else:
                await self._give_up(directory, str(error))
            return
        shard = Shard(directory, spec, token, self._changed, self._patience)
        shard.take_record()
        if shard.has_end:
            self._shards[spec.shard_id] = shard  # kept for its log, and for a leader that has not heard of it
            return
        self._keep(shard, launch=False)
        log.info("Shard adopted", shard=spec.shard_id, phase=shard.status.phase.value)

    async def _give_up(self, directory: ShardDir, reason: str) -> None:
        """Without its order a shard can't be told to anyone, and would hold its GPUs for ever: end it."""
        log.error("Shard without a usable record is ended", directory=str(directory.path), error=reason)
        self.problems.append(f"a shard was ended and set aside, its record is unusable: {reason}")
        state = _state_or_none(directory)
        holder = find_holder(directory, state)
        if holder is not None:
            send_signal(holder, signal.SIGTERM)
            try:
                await asyncio.wait_for(wait_gone(holder), UNREADABLE_SECONDS)
            except TimeoutError:
                send_signal(holder, signal.SIGKILL)
        if state is not None:
            kill_by_token(state.token)
        aside = directory.path.with_name(f"{UNREADABLE}{time.time_ns()}-{directory.path.name}")
        os.rename(directory.path, aside)

    def _keep(self, shard: Shard, *, launch: bool) -> None:
        self._shards[shard.spec.shard_id] = shard
        task = asyncio.create_task(shard.run(launch=launch), name=f"shard-{shard.spec.shard_id}")
        self._tasks[shard] = task
        task.add_done_callback(lambda done: self._done(shard, done))

    def _done(self, shard: Shard, task: asyncio.Task[None]) -> None:
        del self._tasks[shard]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("Shard is not attended any more", shard=shard.spec.shard_id, exc_info=error)

    def _prune(self) -> None:
        """Remove the oldest of the ended shards that a leader heard of."""
        ended = [shard for shard in self.shards if shard.status.phase.ended and shard.intent.told]
        ended.sort(key=lambda shard: shard.state.started if shard.state is not None else 0.0)
        for shard in ended[: max(0, len(ended) - KEPT_ENDED)]:
            del self._shards[shard.spec.shard_id]
            shutil.rmtree(shard.directory.path, ignore_errors=True)


def _order_of(directory: ShardDir) -> tuple[ShardSpec, str]:
    spec, token = directory.spec()
    if spec.shard_id != directory.path.name:
        raise RecordError(f"{directory.path} holds the record of shard {spec.shard_id}")
    return spec, token


def _state_or_none(directory: ShardDir) -> HolderState | None:
    try:
        return directory.state()
    except RecordError:
        return None
