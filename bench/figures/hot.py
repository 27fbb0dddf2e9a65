"""GETs of blocks that the gateway's read cache has, copied into the client's arena or region.

A hit is always copied: the protocol has no lease of a copy that a client could read in place. How fast hits
would be without their bytes is told by blocks of 512 bytes. `memcpy` is one thread that copies blocks from
one memory to another, in the same run.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row
from bench.pod import Pod, running_pod
from integration.client import Block, Client, Status, connect

DIALOG = 1
# Of each block size: far more than a core's own caches.
HOT_BYTES = 512 << 20
MOST_BLOCKS = 8192
ARENA_BYTES = 128 << 20
# GETs/s of 64 KiB, and GB/s at 2 MiB in batches of 32.
LIMIT_GETS = 1.5e6
LIMIT_GB_PER_S = 4.3


@dataclass(frozen=True)
class Case:
    """Batches of `batch` blocks of `size` bytes, into blocks of `place`."""

    size: int
    batch: int
    place: str

    def __str__(self) -> str:
        size = f"{self.size >> 10} KiB" if self.size >= 1024 else f"{self.size} B"
        return f"{size} x{self.batch}, {self.place}"


SHAPES = ((65536, 1), (65536, 32), (2 << 20, 32))
CASES = [
    *(Case(*shape, place) for shape in SHAPES for place in ("arena", "region")),
    Case(512, 4096, "arena"),
]


@dataclass
class Figures:
    """Values of one case, by repeat."""

    gets_per_s: list[float]
    gb_per_s: list[float]
    dataplane_cpu: list[float]


def measure(options: Options) -> Report:
    """Stores the blocks, reads all once so that the gateway has copies, and then times each case in turn."""
    seconds, hot = (0.3, HOT_BYTES >> 2) if options.quick else (1.0, HOT_BYTES)
    figures = {case: Figures([], [], []) for case in CASES}
    copies: list[float] = []
    memory = {"shared_memory_size": 4 << 30, "read_cache_size": 3 << 30}
    with (
        running_pod(options.directory, capacity=2 << 30, **memory) as pod,
        connect(socket=str(pod.socket), strict=True, arena_bytes=ARENA_BYTES, timeout=30.0) as client,
    ):
        keys = _warm(client, hot)
        for _ in range(options.repeats):
            for case in CASES:
                with _blocks(client, case) as blocks:
                    _one(pod, client, case, keys[case.size], blocks, seconds, figures[case])
            copies.append(_copying(2 << 20, hot, seconds))
    return _report(figures, copies, hot)


def _warm(client: Client, hot: int) -> dict[int, list[bytes]]:
    """Keys by block size, `hot` bytes of each (fewer of small ones), that the gateway has copies of."""
    keys = {
        size: [os.urandom(32) for _ in range(min(hot // size, MOST_BLOCKS))]
        for size in {case.size for case in CASES}
    }
    # All are stored before any is read: a PUT can end copies of other keys (generations are counted by hash).
    for size, stored in keys.items():
        _each_part(client, size, stored, lambda part, blocks: _put(client, part, blocks))
    before = client.stats()["cache_fills"]
    for size, stored in keys.items():
        _each_part(client, size, stored, lambda part, blocks: _get(client, part, blocks))
    if client.stats()["cache_fills"] - before < sum(map(len, keys.values())):
        raise ValueError("the gateway did not keep copies of all blocks")
    return keys


def _each_part(
    client: Client, size: int, keys: list[bytes], call: Callable[[list[bytes], list[Block]], None]
) -> None:
    blocks = client.alloc(32, size)
    for start in range(0, len(keys), 32):
        call(keys[start : start + 32], blocks)
    client.free(blocks)


def _put(client: Client, keys: Sequence[bytes], blocks: Sequence[Block]) -> None:
    if set(client.put(keys, blocks, DIALOG)) != {Status.OK}:
        raise ValueError("not all blocks could be stored")


@contextmanager
def _blocks(client: Client, case: Case) -> Iterator[list[Block]]:
    if case.place == "arena":
        blocks = client.alloc(case.batch, case.size)
        yield blocks
        client.free(blocks)
        return
    descriptor = os.memfd_create("bench-hot")
    os.truncate(descriptor, case.size * case.batch)
    region = client.register(descriptor)
    os.close(descriptor)
    yield [region.block(number * case.size, case.size) for number in range(case.batch)]
    client.unregister(region)


def _one(
    pod: Pod,
    client: Client,
    case: Case,
    keys: Sequence[bytes],
    blocks: Sequence[Block],
    seconds: float,
    into: Figures,
) -> None:
    batches = [keys[start : start + case.batch] for start in range(0, len(keys), case.batch)]
    _get(client, batches[0], blocks)
    hits, cpu = client.stats()["cache_hits"], pod.dataplane.cpu_seconds
    calls, took = _repeat(lambda number: _get(client, batches[number % len(batches)], blocks), seconds)
    moved = calls * case.batch * case.size / 1e9
    into.gets_per_s.append(calls * case.batch / took)
    into.gb_per_s.append(moved / took)
    into.dataplane_cpu.append((pod.dataplane.cpu_seconds - cpu) / moved)
    if client.stats()["cache_hits"] - hits != calls * case.batch:
        raise ValueError(f"{case}: not every GET was answered from the gateway's copies")


def _get(client: Client, keys: Sequence[bytes], blocks: Sequence[Block]) -> None:
    replies = client.get(keys, blocks, DIALOG)
    if any(reply.status != Status.OK for reply in replies):
        raise ValueError("a hot block was a miss")


def _copying(size: int, hot: int, seconds: float) -> float:
    """GB/s of one thread that copies blocks out of `hot` bytes into a batch of 32."""
    source, into = mmap.mmap(-1, hot), memoryview(mmap.mmap(-1, 32 * size))
    source[:] = b"\1" * hot
    view = memoryview(source)

    def copy(number: int) -> None:
        at, to = number * size % hot, number % 32 * size
        into[to : to + size] = view[at : at + size]

    _repeat(copy, 0.1)
    calls, took = _repeat(copy, seconds)
    return calls * size / 1e9 / took


def _repeat(call: Callable[[int], None], seconds: float) -> tuple[int, float]:
    """How many calls were made, and in what time."""
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        call(number)
        number += 1
    return number, time.perf_counter() - began


def _report(figures: dict[Case, Figures], copies: list[float], hot: int) -> Report:
    rows = []
    for case, found in figures.items():
        rows.append(Row(str(case), "GETs/s", found.gets_per_s))
        rows.append(Row(f"{case}, speed", "GB/s", found.gb_per_s))
        rows.append(Row(f"{case}, CPU of akv-dataplane", "s/GB", found.dataplane_cpu))
    rows.append(Row("memcpy of 2048 KiB, one thread", "GB/s", copies))
    best = {row.case: row.median for row in rows}
    large = max(best[f"{Case(2 << 20, 32, place)}, speed"] for place in ("arena", "region"))
    claims = [
        Claim("GETs/s of 64 KiB, with their copy", best[str(Case(65536, 32, "arena"))], LIMIT_GETS),
        Claim("GETs/s of 512 bytes, in place of GETs without bytes", best[str(CASES[-1])], LIMIT_GETS),
        Claim("GB/s at 2 MiB x32", large, LIMIT_GB_PER_S),
    ]
    return Report("hot", rows, claims, {"cards": 1, "workers": 1, "hot_bytes": hot})
