"""Measure the etcd client while one of three members is killed or suspended (figures of DESIGN.md).

Usage: python -m tools.bench_etcd_client [--seconds 5]

For each fault: the longest read, when the last failed read ended after the fault, and the longest time
without a change on a watch while a writer of its own goes on. Nothing may be lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import StoreError
from controlplane.store.watch import Changes, Watch
from tests.support.etcd import EtcdCluster, run_etcd

PREFIX = b"/bench/"


@dataclass
class Figures:
    """What one run showed; times are seconds."""

    longest_read: float = 0.0
    last_failure: float = 0.0
    failed_reads: int = 0
    watch_gap: float = 0.0
    seen: set[bytes] = field(default_factory=set)


async def read(client: EtcdClient, figures: Figures, began: float) -> None:
    """Read without pause and note how long it takes."""
    while True:
        start = time.monotonic()
        try:
            await client.get(PREFIX)
        except StoreError:
            figures.failed_reads += 1
            figures.last_failure = time.monotonic() - began
        figures.longest_read = max(figures.longest_read, time.monotonic() - start)
        await asyncio.sleep(0.01)


async def write(endpoints: list[str]) -> None:
    """Write a new key every 20 ms, as well as that goes."""
    async with EtcdClient(endpoints) as client:
        number = 0
        while True:
            number += 1
            with contextlib.suppress(StoreError):
                await client.txn([], [kv.put(PREFIX + str(number).encode(), b"x")])
            await asyncio.sleep(0.02)


async def follow(client: EtcdClient, start: int, figures: Figures) -> None:
    """Watch, and note the longest silence."""
    async with Watch(client, [PREFIX], start) as items:
        heard = time.monotonic()
        async for item in items:
            now = time.monotonic()
            figures.watch_gap = max(figures.watch_gap, now - heard)
            heard = now
            if isinstance(item, Changes):
                figures.seen.update(change.key for change in item.changes)


async def measure(cluster: EtcdCluster, role: str, fault: str, seconds: float) -> None:
    """One fault, on the member that the client prefers."""
    victim = cluster.leader() if role == "leader" else cluster.follower()
    endpoints = [victim.endpoint, *(m.endpoint for m in cluster.members if m is not victim)]
    figures = Figures()
    async with EtcdClient(endpoints) as client:
        start = (await client.range(PREFIX)).header.revision + 1
        tasks = [asyncio.create_task(write(endpoints)), asyncio.create_task(follow(client, start, figures))]
        await asyncio.sleep(1.0)
        (victim.running.kill if fault == "kill" else victim.running.suspend)()
        tasks.append(asyncio.create_task(read(client, figures, time.monotonic())))
        await asyncio.sleep(seconds)
        tasks[0].cancel()
        await asyncio.sleep(1.0)
        written = {pair.key for pair in (await client.range(PREFIX, kv.prefix_end(PREFIX))).kvs}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(
        f"{role:8} {fault:8} longest read {figures.longest_read * 1000:4.0f} ms, "
        f"{figures.failed_reads} failed, the last after {figures.last_failure:.2f} s, "
        f"longest silence of the watch {figures.watch_gap:.2f} s, "
        f"lost {len(written - figures.seen)} of {len(written)}"
    )


def main() -> None:
    """Run every fault on a cluster of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure after each fault")
    seconds = parser.parse_args().seconds
    for role in ("follower", "leader"):
        for fault in ("kill", "suspend"):
            with tempfile.TemporaryDirectory() as directory, run_etcd(Path(directory), 3) as cluster:
                asyncio.run(measure(cluster, role, fault, seconds))


if __name__ == "__main__":
    main()
