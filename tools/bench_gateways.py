"""Load one quorum with many gateways: what a poll costs, and how fast a change reaches all of them.

Usage: python -m tools.bench_gateways [--gateways 1000] [--whole 100] [--processes 2] [--seconds 30]

Each simulated gateway is what `akv-gateway` is towards etcd: a client of its own, a linearizable read of the
whole card set every second, and a watch. `--whole` of them also do a gateway's own work with what they read,
which takes more of a machine than etcd's part of it does; the others leave it (tools/light_gateway.py). All
begin within one interval. In the middle of the run a card turns
sick and, five seconds later, healthy again; the first must reach each gateway by debounced polls, the second
by the watch. The figures are one JSON object on stdout (docs/scale.md).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import structlog
import uvloop

from controlplane.gateway.session import EtcdSession
from controlplane.model.cards import Health
from controlplane.model.debounce import PollLimits
from controlplane.model.view import GatewayView
from controlplane.store.errors import StoreError
from tests.support.cluster_records import ClusterRecords, TestCard
from tests.support.etcd import EtcdCluster, run_etcd
from tools.light_gateway import LightGateway

CARDS = 8
POLL_SECONDS = 1.0
CALL_SECONDS = 0.5
BETWEEN_READS = 0.02
START_SECONDS = 60.0
SICK_FOR_SECONDS = 5.0
DESCRIPTORS_EACH = 16


@dataclass
class Figures:
    """What the gateways of one process saw. Times in seconds, by CLOCK_MONOTONIC, which processes share."""

    polls: list[float] = field(default_factory=list)
    failed: int = 0
    out_at: list[float] = field(default_factory=list)
    back_at: list[float] = field(default_factory=list)
    fingerprints: set[str] = field(default_factory=set)
    cpu_seconds: float = 0.0


class Gateway:
    """One simulated gateway."""

    def __init__(self, endpoints: list[str], figures: Figures, victim: str) -> None:
        self._wake = asyncio.Event()
        self._session = EtcdSession(endpoints, CALL_SECONDS, self._wake)
        self._view = GatewayView(PollLimits(3, 3, POLL_SECONDS), 128)
        self._figures = figures
        self._victim = victim
        self._was_out = False
        self.measuring = False
        self.ready = asyncio.Event()

    async def run(self, delay: float) -> None:
        """Poll and watch until cancelled."""
        await asyncio.sleep(delay)
        due = time.monotonic()
        try:
            while True:
                start = time.monotonic()
                is_poll = start >= due
                if is_poll:
                    due = start + POLL_SECONDS
                self._wake.clear()
                await self._read(start, is_poll=is_poll)
                await asyncio.sleep(BETWEEN_READS)
                try:
                    async with asyncio.timeout(max(0.0, due - time.monotonic())):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            await self._session.close()

    async def _read(self, start: float, *, is_poll: bool) -> None:
        try:
            snapshot = await self._session.read()
        except StoreError as error:
            self._view.failed(str(error), start)
            self._figures.failed += self.measuring
            return
        now = time.monotonic()
        if self.measuring and is_poll:
            self._figures.polls.append(now - start)
        self._view.observe(snapshot, start, is_poll)
        self._session.watch_after(snapshot.revision)
        self._note(now)

    def _note(self, now: float) -> None:
        plan = self._view.plan
        if plan is None:
            return
        self.ready.set()
        self._figures.fingerprints.add(plan.fingerprint)
        is_out = not any(card.serial == self._victim and card.routable for card in plan.cards)
        if is_out != self._was_out:
            self._was_out = is_out
            (self._figures.out_at if is_out else self._figures.back_at).append(now)


class LightFigures:
    """Takes the polls of light gateways while `measuring`."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self.measuring = False

    def note(self, seconds: float | None) -> None:
        """One poll; None: it failed."""
        if not self.measuring:
            return
        if seconds is None:
            self._figures.failed += 1
        else:
            self._figures.polls.append(seconds)


async def simulate(count: int, whole: int, endpoints: list[str], victim: str, orders: Connection) -> Figures:
    """Run `count` gateways, `whole` of them with all their work; says "ready", measures from "measure" to
    "end".
    """
    figures = Figures()
    light = LightFigures(figures)
    gateways: list[Gateway | LightGateway] = [
        Gateway(endpoints[number % 3 :] + endpoints[: number % 3], figures, victim)
        if number < whole
        else LightGateway(endpoints[number % 3], POLL_SECONDS, CALL_SECONDS, light.note)
        for number in range(count)
    ]
    tasks = [
        asyncio.create_task(gateway.run(START_SECONDS / 6 * number / count))
        for number, gateway in enumerate(gateways)
    ]
    async with asyncio.timeout(START_SECONDS):
        for gateway in gateways:
            await gateway.ready.wait()
    orders.send("ready")
    await asyncio.to_thread(orders.recv)
    before = resource.getrusage(resource.RUSAGE_SELF)
    light.measuring = True
    for gateway in gateways:
        if isinstance(gateway, Gateway):
            gateway.measuring = True
    await asyncio.to_thread(orders.recv)
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return figures


def child(count: int, whole: int, endpoints: list[str], victim: str, orders: Connection) -> None:
    """Entry of a process of simulated gateways."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1024 + DESCRIPTORS_EACH * count
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    # What a thousand gateways say of an endpoint that is late is no figure.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    orders.send(asdict(uvloop.run(simulate(count, whole, endpoints, victim, orders))))


@contextmanager
def simulators(options: argparse.Namespace, endpoints: list[str], victim: str) -> Iterator[list[Connection]]:
    """The processes, each ready."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(options.processes)]
    share = options.gateways // options.processes
    whole = options.whole // options.processes
    workers = [
        context.Process(target=child, args=(share, whole, endpoints, victim, pipe[1]), daemon=True)
        for pipe in pipes
    ]
    for worker in workers:
        worker.start()
    try:
        for ours, _ in pipes:
            answer(ours, START_SECONDS + 30.0)
        yield [ours for ours, _ in pipes]
    finally:
        for worker in workers:
            worker.join(10.0)
            worker.kill()


def answer(pipe: Connection, seconds: float) -> Any:
    """What a simulator sends within `seconds`."""
    if not pipe.poll(seconds):
        raise TimeoutError(f"a process of simulated gateways sent nothing in {seconds} s")
    return pipe.recv()


def etcd_seconds(cluster: EtcdCluster) -> float:
    """CPU time of all members until now."""
    used = [psutil.Process(member.running.pid).cpu_times() for member in cluster.members]
    return float(sum(times.user + times.system for times in used))


def measure(options: argparse.Namespace, cluster: EtcdCluster) -> dict[str, Any]:
    """One run."""
    records = ClusterRecords(cluster.members[0], str(uuid4()))
    records.create()
    cards = [records.join(f"L{number}P0") for number in range(CARDS)]
    with simulators(options, cluster.endpoints, cards[0].serial) as pipes:
        time.sleep(2.0)  # the last of them have begun to watch
        began, cpu = time.monotonic(), etcd_seconds(cluster)
        for pipe in pipes:
            pipe.send("measure")
        sick_at, healthy_at = disturb(records, cards[0], options.seconds)
        time.sleep(max(0.0, began + options.seconds - time.monotonic()))
        seconds, cpu = time.monotonic() - began, etcd_seconds(cluster) - cpu
        for pipe in pipes:
            pipe.send("end")
        parts = [Figures(**answer(pipe, 60.0)) for pipe in pipes]
    polls = sorted(value for part in parts for value in part.polls)
    return {
        "gateways": options.gateways // options.processes * options.processes,
        "whole": options.whole // options.processes * options.processes,
        "seconds": round(seconds, 1),
        "polls": len(polls),
        "failed_polls": sum(part.failed for part in parts),
        "poll_ms": spread(polls, 0.0),
        "sick_to_out_ms": spread(sorted(value for part in parts for value in part.out_at), sick_at),
        "healthy_to_in_ms": spread(sorted(value for part in parts for value in part.back_at), healthy_at),
        "fingerprints": len(set().union(*(part.fingerprints for part in parts))),
        "etcd_cores": round(cpu / seconds, 2),
        "gateway_cores": round(sum(part.cpu_seconds for part in parts) / seconds, 2),
    }


def disturb(records: ClusterRecords, card: TestCard, seconds: float) -> tuple[float, float]:
    """Make the card sick and healthy again in the middle of the run; when each was written."""
    time.sleep(seconds / 3)
    sick_at = time.monotonic()
    records.health(card, Health.SICK)
    time.sleep(SICK_FOR_SECONDS)
    healthy_at = time.monotonic()
    records.health(card, Health.HEALTHY)
    return sick_at, healthy_at


def spread(values: list[float], since: float) -> dict[str, float | int]:
    """Count, median, p99 and maximum of ascending times, in milliseconds after `since`."""
    if not values:
        return {"count": 0}
    at = {"p50": len(values) // 2, "p99": len(values) * 99 // 100, "max": -1}
    return {"count": len(values)} | {
        name: round((values[place] - since) * 1000, 1) for name, place in at.items()
    }


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gateways", type=int, default=1000)
    parser.add_argument("--whole", type=int, default=100, help="how many do all of a gateway's work")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, run_etcd(Path(directory), 3) as cluster:
        print(json.dumps(measure(options, cluster), indent=2))


if __name__ == "__main__":
    main()
