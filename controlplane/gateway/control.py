"""The control process of a gateway pod: reads the cluster, decides, keeps the dataplane on the plan."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from akv.v1 import dataplane_pb2

from controlplane.base.addresses import parse_host_port
from controlplane.base.backoff import Backoff
from controlplane.base.gateway_config import GatewayConfig
from controlplane.base.logging import get_logger
from controlplane.base.tls import NewestCredentials
from controlplane.gateway.dataplane import DataplaneClient, DataplaneError
from controlplane.gateway.members import MemberSource
from controlplane.gateway.pusher import PlanPusher
from controlplane.gateway.reader import ClusterReader
from controlplane.gateway.state import StateDir, StateError
from controlplane.gateway.status import Picture
from controlplane.gateway.status_writer import StatusWriter, unix_now
from controlplane.model.cards import CardPath, RegistryEntry
from controlplane.model.debounce import PollLimits
from controlplane.model.plan import FIXED_LIST, GatewayPlan, fixed_plan
from controlplane.model.plan_events import Event
from controlplane.model.view import Decision, GatewayView

log = get_logger("gateway")

# How long a start waits for the dataplane's plan, which is this gateway's history.
ADOPT_SECONDS = 2.0
# Least time between two reads, so that a storm of changes is read a few times and not a thousand times.
BETWEEN_READS = 0.02

Clock = Callable[[], float]


@dataclass
class ControlProcess:
    """Everything that runs; `run` ends when `stop` is set and leaves nothing behind."""

    config: GatewayConfig
    state: StateDir
    clock: Clock = time.monotonic
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        config = self.config
        self._pinned = self.state.pinned_uuid()
        self._dataplane = DataplaneClient(config.dataplane_socket)
        self._pusher = PlanPusher(
            self._dataplane,
            Backoff(0.1, 5.0),
            config.accept_cluster_uuid,
            self._plan_changed,
        )
        self._status = StatusWriter(
            Path(config.status_file), self._dataplane, self._paint, self._pusher.heard
        )
        # An explicitly accepted cluster comes before the one that was pinned.
        self._view = GatewayView(_limits(config), config.num_dbs, config.accept_cluster_uuid or self._pinned)
        self._fixed: GatewayPlan | None = None
        self._last_answer: float | None = None
        self._pin_error: str | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop`. Raises MetricsAddressError."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._dataplane.close)
            if self.config.metrics is not None:
                from controlplane.gateway.metrics_http import serve_metrics  # noqa: PLC0415 - rarely needed

                runner = await serve_metrics(parse_host_port(self.config.metrics), self._status)
                stack.push_async_callback(runner.cleanup)
            await self._adopt()
            work = [self._pusher.run(), self._status.run()]
            if self.config.cluster_hostname:
                work += self._cluster_work(stack)
            else:
                self._use_fixed_list()
            await self._until_stopped(work)

    async def _adopt(self) -> None:
        """Continue from what the dataplane serves, where it serves something already."""
        try:
            served = await self._dataplane.get_plan(ADOPT_SECONDS)
        except DataplaneError as error:
            log.info("Dataplane is not there yet", error=str(error))
            return
        if served.plan is None or served.plan.cluster_uuid == FIXED_LIST or not self.config.cluster_hostname:
            return
        self._view.adopt(served.plan)
        log.info("Plan continued", fingerprint=served.plan.fingerprint, sequence=served.sequence)
        self._offer(self._view.plan)

    def _cluster_work(self, stack: AsyncExitStack) -> list[Coroutine[Any, Any, None]]:
        config = self.config
        log.info("Using cluster mode", hosts=[str(host) for host in config.cluster_hosts()])
        seconds = config.cluster_etcd_timeout_ms / 1000
        files = config.cluster_credentials()
        credentials = NewestCredentials(files) if files is not None else None
        source = MemberSource(config.cluster_hosts(), seconds, credentials)
        reader = ClusterReader(source, self._view, seconds, self._wake)
        stack.push_async_callback(reader.close)
        return [self._poll(reader), reader.keep_members(config.cluster_poll_ms / 1000)]

    def _use_fixed_list(self) -> None:
        devices = self.config.storage_devices or []
        cards = [
            (
                RegistryEntry(device.serial, device.nqn, "", number),
                (CardPath(device.transport, device.traddr, device.trsvcid),),
            )
            for number, device in enumerate(devices)
        ]
        self._fixed = fixed_plan(cards, self.config.num_dbs)
        log.info("Using a fixed list of cards", cards=len(cards), fingerprint=self._fixed.fingerprint)
        self._offer(self._fixed)

    async def _poll(self, reader: ClusterReader) -> None:
        """Read once an interval, and in between when the watch saw a change."""
        interval = self.config.cluster_poll_ms / 1000
        next_poll = self.clock()
        while True:
            start = self.clock()
            is_poll = start >= next_poll
            if is_poll:
                next_poll = start + interval
            self._wake.clear()
            self._act(await reader.read(start, is_poll))
            await asyncio.sleep(BETWEEN_READS)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_poll - self.clock())):
                    await self._wake.wait()

    def _act(self, decision: Decision) -> None:
        """Carry out what the view decided: pin, log, push, and show."""
        for event in decision.events:
            _log(event)
        if decision.stale is None:
            self._last_answer = unix_now()
            self._pin()
        if decision.changed:
            self._offer(self._view.plan)
        if decision.events:
            self._status.touch()

    def _pin(self) -> None:
        """Write down the cluster that answered; until that works it is tried with each answer."""
        uuid = self._view.cluster_uuid
        if uuid is None or uuid == self._pinned:
            return
        try:
            self.state.pin(uuid)
        except StateError as error:
            self._report_pin_error(str(error))
            return
        self._pinned, self._pin_error = uuid, None
        log.info("Cluster pinned", cluster_uuid=uuid)

    def _report_pin_error(self, error: str) -> None:
        if error != self._pin_error:
            self._pin_error = error
            log.error("Cluster can't be pinned", error=error)

    def _offer(self, plan: GatewayPlan | None) -> None:
        if plan is not None:
            self._pusher.want(plan)
        self._status.touch()

    def _plan_changed(self) -> None:
        self._status.touch()

    def _paint(self, dataplane: dataplane_pb2.GetStatusResponse | None) -> Picture:
        view = self._view
        return Picture(
            plan=self._fixed or view.plan,
            cluster_mode=self.config.cluster_hostname is not None,
            stale=view.stale is not None or self._last_answer is None,
            last_answer=self._last_answer,
            slots_moved=view.slots_moved,
            cards_without_slot=len(view.surplus),
            problems=len(view.problems),
            plan_in_sync=self._pusher.in_sync,
            dataplane=dataplane,
            written=unix_now(),
        )

    async def _until_stopped(self, work: list[Coroutine[Any, Any, None]]) -> None:
        """Run all until `stop`; a task that ends by itself is a defect and ends the process with it."""
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        stopped = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            for task in (stopped, *tasks):
                task.cancel()
            await asyncio.gather(stopped, *tasks, return_exceptions=True)


def _limits(config: GatewayConfig) -> PollLimits:
    return PollLimits(config.cluster_sick_polls, config.cluster_absent_polls, config.cluster_poll_ms / 1000)


def _log(event: Event) -> None:
    getattr(log, event.level)(event.text, **event.fields)
