"""GETs of healthy cards while one card hangs and another one flaps, against nothing being wrong.

Four cards. A prober reads blocks of two of them one by one at a fixed rate. Another process reads blocks of
the other two all the time. In each repeat the prober's latencies are taken twice: undisturbed, and while the
third card is suspended (SIGSTOP) and the fourth resets its connection at every command it gets, again and
again as the gateway comes back to it. Read cache off, so that every GET asks a card.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row, ratios
from bench.pod import Card, Pod, running_pod
from bench.processes import child
from integration.client import Client, Status, connect

BLOCK_BYTES = 65536
BLOCKS_OF_CARD = 256
PROBES_PER_SECOND = 1000
# Few, so that their absence in the windows with faults does not make room for the prober.
OTHERS_PER_SECOND = 50
IO_TIMEOUT_MS = 500
# To the gateway a card that was live for less than 10 s is flapping, and it comes back to such a one more and
# more seldom: each repeat begins with one that has been steady.
STEADY_SECONDS = 11.0
LIMIT = 1.2
# A probe that waits for a sick card waits for its timeout: with this much, none did. A shared machine alone
# may hold one up for tens of milliseconds, so that less would tell of the neighbours.
NO_STALL_MS = 100.0
# Where the machine itself stands still for longer, the undisturbed windows show it too.
LIMIT_LONGEST = 2.0


@dataclass(frozen=True)
class Window:
    """Latencies of one stretch of time, in microseconds."""

    p50: float
    p99: float
    longest: float
    failed: int
    # CPU of the gateway's two processes in percent of a core.
    dataplane_cpu: float
    control_cpu: float


class Prober:
    """Reads stored blocks of some cards, one at a time, `PROBES_PER_SECOND`."""

    def __init__(self, client: Client, pod: Pod, cards: list[Card]) -> None:
        self._client = client
        self._gateway = (pod.dataplane, pod.control)
        self._choices = random.Random(1)
        self._stored = [entry for card in cards for entry in store_blocks(client, pod, card)]
        [self._block] = client.alloc(1, BLOCK_BYTES)

    def window(self, seconds: float) -> Window:
        """Probe for so long."""
        failed = 0

        def probe() -> None:
            nonlocal failed
            key, dialog = self._choices.choice(self._stored)
            [reply] = self._client.get([key], [self._block], dialog)
            failed += reply.status != Status.OK

        before = [process.cpu_seconds for process in self._gateway]
        begin = time.perf_counter()
        taken = latencies(probe, round(seconds * PROBES_PER_SECOND))
        percents, took = statistics.quantiles(taken, n=100), time.perf_counter() - begin
        dataplane, control = (
            (process.cpu_seconds - used) / took * 100
            for process, used in zip(self._gateway, before, strict=True)
        )
        return Window(percents[49], percents[98], max(taken), failed, dataplane, control)


def latencies(
    probe: Callable[[], None],
    count: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Microseconds of `count` probes, `PROBES_PER_SECOND`, each from when it was due.

    All are made: those that were due while one stood still begin late, and that is their latency too.
    """
    begin, taken = clock(), list[float]()
    for number in range(count):
        due = begin + number / PROBES_PER_SECOND
        sleep(max(0.0, due - clock()))
        probe()
        taken.append((clock() - due) * 1e6)
    return taken


def store_blocks(client: Client, pod: Pod, card: Card) -> list[tuple[bytes, int]]:
    """Store blocks on the card; key and dialog of each."""
    entries = [(os.urandom(32), dialog) for dialog in pod.dialogs_of(card, BLOCKS_OF_CARD)]
    [block] = client.alloc(1, BLOCK_BYTES)
    for key, dialog in entries:
        if client.put([key], [block], dialog) != [Status.OK]:
            raise ValueError(f"the card {card.serial} did not store a block")
    client.free([block])
    return entries


def measure(options: Options) -> Report:
    """Windows with and without faults in turn."""
    seconds = 1.0 if options.quick else 5.0
    settings = {"read_cache_size": 0, "io_timeout_ms": IO_TIMEOUT_MS}
    calm, rough, flaps = list[Window](), list[Window](), list[int]()
    with running_pod(options.directory, cards=4, capacity=1 << 28, **settings) as pod:
        *healthy, hung, flapping = pod.cards
        with connect(socket=str(pod.socket), strict=True) as client, _others(pod, options):
            prober = Prober(client, pod, healthy)
            for _ in range(options.repeats):
                time.sleep(1.0 if options.quick else STEADY_SECONDS)
                calm.append(prober.window(seconds))
                with _faults(hung, flapping, flaps):
                    rough.append(prober.window(seconds))
                pod.wait_active(4)
    return _report(calm, rough, flaps, seconds)


@contextmanager
def _others(pod: Pod, options: Options) -> Iterator[None]:
    """Reads of the two cards that get into trouble, from a process of their own."""
    command = [sys.executable, "-m", "bench.figures.others", str(options.directory), str(OTHERS_PER_SECOND)]
    with child([*command, *(card.serial for card in pod.cards)], options.directory / "others.log") as load:
        load.line(60.0)
        yield


@contextmanager
def _faults(hung: Card, flapping: Card, flaps: list[int]) -> Iterator[None]:
    before = flapping.control("stats")["accepted"]
    flapping.control("fault io drop")
    try:
        with hung.suspended():
            yield
    finally:
        flapping.control("fault clear")
        flaps.append(flapping.control("stats")["accepted"] - before)


def _report(calm: list[Window], rough: list[Window], flaps: list[int], seconds: float) -> Report:
    ratio = ratios([window.p99 for window in rough], [window.p99 for window in calm])
    rows = [
        Row("ratio of p99", "", ratio),
        Row("connections that the flapping card took", "in a window", flaps),
        *_rows(calm, "undisturbed"),
        *_rows(rough, "one card hangs and one flaps"),
    ]
    failed = sum(window.failed for window in [*calm, *rough])
    claims = [
        Claim("p99 with faults / undisturbed", rows[0].median, LIMIT, at_most=True),
        _no_stall(calm, rough),
        Claim("GETs of healthy cards that failed", failed, 0, at_most=True),
    ]
    conditions = {
        "cards": 4,
        "block_bytes": BLOCK_BYTES,
        "window_seconds": seconds,
        "probes_per_second": PROBES_PER_SECOND,
        "reads_of_each_other_card_per_second": OTHERS_PER_SECOND,
        "io_timeout_ms": IO_TIMEOUT_MS,
        "read_cache_size": 0,
    }
    return Report("faults", rows, claims, conditions)


def _no_stall(calm: list[Window], rough: list[Window]) -> Claim:
    """The longest of all probes: a stall of one window is not averaged away by the others."""
    undisturbed, disturbed = (max(window.longest for window in windows) / 1e3 for windows in (calm, rough))
    # Never as long as a sick card's timeout, whatever the machine did: then the run shows nothing.
    limit = min(max(NO_STALL_MS, LIMIT_LONGEST * undisturbed), IO_TIMEOUT_MS / 2)
    return Claim("longest probe with faults, ms", disturbed, limit, at_most=True)


def _rows(windows: list[Window], when: str) -> Iterator[Row]:
    yield Row(f"p50, {when}", "us", [window.p50 for window in windows])
    yield Row(f"p99, {when}", "us", [window.p99 for window in windows])
    yield Row(f"longest, {when}", "us", [window.longest for window in windows])
    yield Row(f"akv-dataplane, {when}", "% of a core", [window.dataplane_cpu for window in windows])
    yield Row(f"akv-gateway, {when}", "% of a core", [window.control_cpu for window in windows])
