"""CPU of an idle gateway: four cards connected, one client that asks nothing.

With `busy_poll` off and on. Each repeat reads blocks for a moment, then takes the CPU time of each process
over the first second afterwards (falling asleep) and, after a pause, over the time that follows (asleep).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.figures.faults import BLOCK_BYTES, store_blocks
from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row
from bench.pod import running_pod
from bench.processes import Child
from integration.client import Client, connect

CARDS = 4
BUSY_SECONDS = 1.0
FALLING_SECONDS = 1.0
# Until nothing has been new for so long that the control process asks more seldom.
QUIET_SECONDS = 12.0
LIMIT = 1.0


@dataclass
class Figures:
    """Percent of a core of each process, by repeat."""

    falling: dict[str, list[float]]
    asleep: dict[str, list[float]]


def measure(options: Options) -> Report:
    """Percent of a core of each process."""
    seconds = 5.0 if options.quick else 20.0
    sleeping, polling = (_figures(options, busy_poll, seconds) for busy_poll in (False, True))
    rows = [*_rows(sleeping, ""), *_rows(polling, ", busy_poll")]
    claims = [
        Claim(f"{row.case}, % of a core", row.median, LIMIT, at_most=True)
        for row in rows
        if row.case.startswith("akv-dataplane, asleep")
    ]
    return Report("idle", rows, claims, {"cards": CARDS, "clients": 1, "seconds": seconds})


def _figures(options: Options, busy_poll: bool, seconds: float) -> Figures:
    directory = options.directory / ("polling" if busy_poll else "sleeping")
    directory.mkdir()
    with running_pod(directory, cards=CARDS, capacity=1 << 26, busy_poll=busy_poll) as pod:
        watched = {"akv-dataplane": pod.dataplane, "akv-gateway": pod.control, "a card": pod.cards[0].process}
        figures = Figures({name: [] for name in watched}, {name: [] for name in watched})
        with connect(socket=str(pod.socket), strict=True) as client:
            stored = [entry for card in pod.cards for entry in store_blocks(client, pod, card)]
            for _ in range(options.repeats):
                _read(client, stored)
                _percent(watched, FALLING_SECONDS, figures.falling)
                time.sleep(QUIET_SECONDS)
                _percent(watched, seconds, figures.asleep)
    return figures


def _rows(figures: Figures, mode: str) -> Iterator[Row]:
    for what, by_name in (("asleep", figures.asleep), ("first second", figures.falling)):
        for name, values in by_name.items():
            yield Row(f"{name}, {what}{mode}", "% of a core", values)


def _read(client: Client, stored: list[tuple[bytes, int]]) -> None:
    [block] = client.alloc(1, BLOCK_BYTES)
    end = time.monotonic() + BUSY_SECONDS
    while time.monotonic() < end:
        for key, dialog in stored:
            client.get([key], [block], dialog)
    client.free([block])


def _percent(watched: dict[str, Child], seconds: float, into: dict[str, list[float]]) -> None:
    before, began = {name: child.cpu_seconds for name, child in watched.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    for name, child in watched.items():
        into[name].append((child.cpu_seconds - before[name]) / took * 100)
