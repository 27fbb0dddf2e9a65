"""CPU of an idle gateway: four cards connected, one client that asks nothing.

Each repeat reads blocks for a moment, then takes the CPU time of each process over the first second
afterwards (falling asleep) and over the time that follows (asleep).
"""

from __future__ import annotations

import time

from bench.figures.faults import BLOCK_BYTES, store_blocks
from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row
from bench.pod import Pod, running_pod
from bench.processes import Child
from integration.client import Client, connect

BUSY_SECONDS = 1.0
FALLING_SECONDS = 1.0
LIMIT = 1.0


def measure(options: Options) -> Report:
    """Percent of a core of each process."""
    seconds = 5.0 if options.quick else 20.0
    with running_pod(options.directory, cards=4, capacity=1 << 26) as pod:
        watched = {"akv-dataplane": pod.dataplane, "akv-gateway": pod.control, "a card": pod.cards[0].process}
        falling: dict[str, list[float]] = {name: [] for name in watched}
        asleep: dict[str, list[float]] = {name: [] for name in watched}
        with connect(socket=str(pod.socket), strict=True) as client:
            stored = [entry for card in pod.cards for entry in store_blocks(client, pod, card)]
            for _ in range(options.repeats):
                _read(client, stored)
                _percent(watched, FALLING_SECONDS, falling)
                _percent(watched, seconds, asleep)
    return _report(falling, asleep, seconds, pod)


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


def _report(
    falling: dict[str, list[float]], asleep: dict[str, list[float]], seconds: float, pod: Pod
) -> Report:
    rows = [Row(f"{name}, asleep", "% of a core", values) for name, values in asleep.items()]
    rows += [Row(f"{name}, first second", "% of a core", values) for name, values in falling.items()]
    claims = [Claim("akv-dataplane asleep, % of a core", rows[0].median, LIMIT, at_most=True)]
    conditions = {"cards": len(pod.cards), "clients": 1, "seconds": seconds, "busy_poll": False}
    return Report("idle", rows, claims, conditions)
