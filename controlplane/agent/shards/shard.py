"""One shard of this node, from its launch or adoption to its end."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from controlplane.agent.connections import established
from controlplane.agent.shards.launch import find_holder, kill_by_token, launch_holder, wait_gone
from controlplane.agent.shards.life import Phase, Status, judge
from controlplane.agent.shards.process import ProcessId, send_signal
from controlplane.agent.shards.record import HolderState, Intent, RecordError, ShardDir, Wish
from controlplane.agent.shards.spec import ShardSpec
from controlplane.agent.shards.vigil import Patience
from controlplane.agent.shards.web import ask_drain, wait_ready, watch
from controlplane.base.logging import get_logger

RECORD_POLL = 0.05
DRAIN_POLL = 0.5
QUIET_POLLS = 2
# What a holder may take beyond the engine's grace, before this process ends both.
HOLDER_MARGIN = 15.0
# No stream whose other end is gone is taken for alive any longer.
DEAD_STREAM_SECONDS = 60.0

log = get_logger("shards")


class Shard:
    """Keeps one start of one shard. `changed` is called after every change of `status`."""

    def __init__(
        self,
        directory: ShardDir,
        spec: ShardSpec,
        token: str,
        changed: Callable[[Shard], None],
        patience: Patience,
    ) -> None:
        self.directory = directory
        self.spec = spec
        self.intent: Intent = directory.intent()
        self.status = Status(Phase.STARTING)
        self.state: HolderState | None = None
        self._token = token
        self._changed = changed
        self._patience = patience
        self._holder: ProcessId | None = None
        self._launch_error = ""
        self._told_at = float("-inf")
        self._saving = threading.Lock()
        self._work: dict[str, asyncio.Task[None]] = {}

    @property
    def engine(self) -> ProcessId | None:
        """The engine's process, once it is known."""
        return self.state.engine if self.state is not None else None

    @property
    def has_end(self) -> bool:
        """Whether its holder has written how it ended: then nothing of it runs any more."""
        return self.state is not None and self.state.exit is not None

    def take_record(self) -> None:
        """Judge what is on record, for a status that holds before `run` attends to it."""
        self._read_state()
        self._holder = None if self.has_end else find_holder(self.directory, self.state)
        self.status = judge(self.state, self._holder is not None, self.intent)

    async def run(self, *, launch: bool) -> None:
        """Launch it, or attend to one whose record was taken, to its end. Cancelling leaves it running."""
        try:
            if launch:
                self._holder = await self._launch()
            if self._holder is not None:
                await self._attend(self._holder)
        finally:
            await self._cancel_work()
        self._finish()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the grace; returns when that is under way."""
        if "stop" not in self._work:
            await self._wish("stop")
            self._begin("stop", self._stop())

    async def drain(self, seconds: float) -> None:
        """Take no new work, let what runs end for `seconds`, then stop; a second call changes nothing."""
        if self.intent.wish == "run":
            self.intent = replace(self.intent, drain_until=time.time() + seconds, drain_seconds=seconds)
            await self._wish("drain")
            self._begin("drain", self._drain(seconds))

    @property
    def told_for_sure(self) -> bool:
        """Whether the end was sent to a leader, and not just now: then it may have met a dead stream."""
        return self.intent.told and time.monotonic() - self._told_at >= DEAD_STREAM_SECONDS

    async def mark_told(self) -> None:
        """The end was sent to a leader."""
        self._told_at = time.monotonic()
        if not self.intent.told:
            self.intent = replace(self.intent, told=True)
            await self._save_intent()

    async def _launch(self) -> ProcessId | None:
        try:
            return await asyncio.to_thread(launch_holder, self.directory)
        except OSError as error:
            self._launch_error = f"its holder can't be started: {error}"
            return None

    async def _attend(self, holder: ProcessId) -> None:
        gone = asyncio.create_task(wait_gone(holder), name=f"holder-{self.spec.shard_id}")
        try:
            await self._first_record(gone)
            if not gone.done():
                self._take_up()
            self._judge(holder_lives=True)
            await gone
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _first_record(self, gone: asyncio.Task[None]) -> None:
        """Wait until the holder says that the engine runs; a record that can't be read is not waited for."""
        while not gone.done():
            if not self._read_state() or (self.state is not None and self.state.phase != "starting"):
                return
            await asyncio.wait({gone}, timeout=RECORD_POLL)

    def _take_up(self) -> None:
        """Begin, or after an adoption go on with, what is wanted."""
        if self.intent.wish == "stop":
            self._begin("stop", self._stop())
        elif self.intent.wish == "drain":
            self._begin("drain", self._drain(self.intent.drain_left(time.time())))
        else:
            self._begin("serve", self._serve())

    async def _serve(self) -> None:
        """Tell when it serves; should it fall silent after that, end it: that is a failure and no stop."""
        if not self.intent.ready:
            await self._until_ready()
        if not self.intent.unresponsive:  # else it was given up already, by an agent that ended before it did
            if not self.spec.health_path or not self._patience.misses:
                return
            reason = await watch(self.spec, self._patience)
            log.error("Shard is given up and ended", shard=self.spec.shard_id, reason=reason)
            self.intent = replace(self.intent, unresponsive=reason)
            await self._save_intent()
        await self._stop()

    async def _until_ready(self) -> None:
        if self.spec.health_path:
            await wait_ready(self.spec)
        self.intent = replace(self.intent, ready=True)
        await self._save_intent()
        log.info("Shard ready", shard=self.spec.shard_id, port=self.spec.port)
        self._judge(holder_lives=True)

    async def _drain(self, seconds: float) -> None:
        spec = self.spec
        log.info("Shard drains", shard=spec.shard_id, seconds=round(seconds, 1))
        try:
            async with asyncio.timeout(seconds):
                if spec.drain_signal:
                    self._signal_engine(signal.Signals[spec.drain_signal])
                    await asyncio.Event().wait()  # its end, or the deadline
                elif spec.drain_path:
                    await self._drain_by_http()
                elif spec.port:
                    await self._drain_by_connections()
        except TimeoutError:
            log.warning("Shard not drained in time", shard=spec.shard_id)
        await self._wish("stop")
        await self._stop()

    async def _drain_by_http(self) -> None:
        told = ""
        while (answer := await ask_drain(self.spec)) != "done":
            if answer not in {"again", told}:
                told = answer
                log.warning("Shard can't be asked to drain", shard=self.spec.shard_id, error=answer)
            await asyncio.sleep(DRAIN_POLL)

    async def _drain_by_connections(self) -> None:
        """Until no one is connected to its port, seen twice in a row."""
        quiet = 0
        while quiet < QUIET_POLLS:
            quiet = quiet + 1 if await asyncio.to_thread(established, self.spec.port) == 0 else 0
            await asyncio.sleep(DRAIN_POLL)

    async def _stop(self) -> None:
        """Tell the holder; when it does not obey in time, end engine and holder from here."""
        holder = self._holder
        if holder is None:
            return
        send_signal(holder, signal.SIGTERM)
        await asyncio.sleep(self.spec.stop_seconds + HOLDER_MARGIN)
        log.error("Holder does not obey and is killed", shard=self.spec.shard_id, pid=holder.pid)
        await asyncio.to_thread(kill_by_token, self._token)
        send_signal(holder, signal.SIGKILL)

    def _signal_engine(self, number: signal.Signals) -> None:
        if self.engine is not None:
            send_signal(self.engine, number)

    def _finish(self) -> None:
        """After the holder's end: nothing of this start may go on, then the end is judged."""
        if kill_by_token(self._token):
            log.warning("Ended what a shard left behind", shard=self.spec.shard_id)
        self._read_state()
        self._holder = None
        self._judge(holder_lives=False)
        status = self.status
        log.info(
            "Shard ended",
            shard=self.spec.shard_id,
            phase=status.phase.value,
            exit_code=status.exit_code,
            error=status.error,
        )

    def _judge(self, *, holder_lives: bool) -> None:
        status = judge(self.state, holder_lives, self.intent)
        if status.phase is Phase.FAILED and self.state is None:
            error = self._launch_error or status.error
            status = replace(status, error=error, last_output=self.directory.holder_errors())
        if status != self.status:
            self.status = status
            self._changed(self)

    def _read_state(self) -> bool:
        """Read the holder's record; False when it is damaged, and then what was known stays."""
        try:
            state = self.directory.state()
        except RecordError as error:
            log.warning("Shard record unreadable", shard=self.spec.shard_id, error=str(error))
            return False
        if state is not None and state.token == self._token:
            self.state = state
        return True

    async def _wish(self, wish: Wish) -> None:
        self.intent = replace(self.intent, wish=wish)
        await self._save_intent()
        if not self.status.phase.ended:
            self._judge(holder_lives=True)

    async def _save_intent(self) -> None:
        try:
            await asyncio.to_thread(self._write_intent)
        except OSError as error:
            log.warning("Shard record not written", shard=self.spec.shard_id, error=str(error))

    def _write_intent(self) -> None:
        """For threads, which a cancelled task does not wait for: each in turn writes the newest intent."""
        with self._saving:
            self.directory.write_intent(self.intent)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run one piece of work; it takes the place of what was begun before it."""
        for task in self._work.values():
            task.cancel()
        self._work[name] = asyncio.create_task(work, name=f"{name}-{self.spec.shard_id}")

    async def _cancel_work(self) -> None:
        tasks = list(self._work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._work.clear()
