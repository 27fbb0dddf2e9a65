"""Blocks that the read cache has: copied into the client's arena or region, or borrowed and read in place.

To borrow is a BORROW and a RETURN, each with its reply; no byte of a block is moved. `exchange` sends the
RETURN of a batch with the BORROW of the next one. One client and the gateway take turns, so what a worker
core can do is the blocks of a second in which the worker was busy (`busy_ns` of STATS). Its CPU time counts
polling for the client's next request as well. `memcpy` is one thread that copies blocks from one memory to
another, in the same run.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row
from bench.payload import Payloads
from bench.pod import Pod, running_pod
from integration.client import Block, Client, Status, connect

DIALOG = 1
# Of each block size: far more than a core's own caches.
HOT_BYTES = 512 << 20
MOST_BLOCKS = 8192
ARENA_BYTES = 128 << 20
# GETs/s of 64 KiB in place, and GB/s at 2 MiB in batches of 32.
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
]
EXCHANGED = [Case(65536, batch, "in place") for batch in (32, 4096)]
RELEASED = Case(65536, 32, "in place, released before the next one is borrowed")
BORROWED = [RELEASED, *EXCHANGED]


@dataclass
class Loans:
    """Values of one case of blocks read in place, by repeat."""

    blocks_per_s: list[float]
    blocks_per_busy_s: list[float]
    blocks_per_cpu_s: list[float]


@dataclass
class Figures:
    """Values of one case, by repeat."""

    gets_per_s: list[float]
    gb_per_s: list[float]
    dataplane_cpu: list[float]


@dataclass(frozen=True)
class Hot:
    """The blocks of one size that the gateway has copies of; their bytes follow from their keys."""

    keys: list[bytes]
    payloads: Payloads

    def batches(self, count: int) -> list[list[bytes]]:
        """All keys, `count` in each batch."""
        return [self.keys[start : start + count] for start in range(0, len(self.keys), count)]

    def fill(self, keys: Sequence[bytes], blocks: Sequence[Block]) -> None:
        """Write what is to be stored into the blocks."""
        for key, block in zip(keys, blocks, strict=True):
            self.payloads.fill(key, block.view)

    def check(self, keys: Sequence[bytes], views: Iterable[memoryview | None]) -> None:
        """Raises ValueError unless each view has every byte of what was stored under its key."""
        for key, view in zip(keys, views, strict=True):
            if view is None or not self.payloads.matches(key, view):
                raise ValueError("a hot block is not what was stored under its key")


def measure(options: Options) -> Report:
    """Stores the blocks, reads all once so that the gateway has copies, and then times each case in turn."""
    seconds, hot = (0.3, HOT_BYTES >> 2) if options.quick else (1.0, HOT_BYTES)
    figures = {case: Figures([], [], []) for case in CASES}
    loans = {case: Loans([], [], []) for case in BORROWED}
    copies: list[float] = []
    memory = {"shared_memory_size": 4 << 30, "read_cache_size": 3 << 30, "lend_cached_blocks": True}
    with (
        running_pod(options.directory, capacity=2 << 30, **memory) as pod,
        connect(socket=str(pod.socket), strict=True, arena_bytes=ARENA_BYTES, timeout=30.0) as client,
    ):
        stored = _warm(client, hot)
        for _ in range(options.repeats):
            for case in CASES:
                with _blocks(client, case) as blocks:
                    _one(pod, client, case, stored[case.size], blocks, seconds, figures[case])
            for case in BORROWED:
                _borrow(pod, client, case, stored[case.size], seconds, loans[case])
            copies.append(_copying(2 << 20, hot, seconds))
    return _report(figures, loans, copies, hot)


def _warm(client: Client, hot: int) -> dict[int, Hot]:
    """Blocks by size, `hot` bytes of each (fewer of small ones), that the gateway has copies of."""
    made = {
        size: Hot([os.urandom(32) for _ in range(min(hot // size, MOST_BLOCKS))], Payloads(size))
        for size in {case.size for case in CASES}
    }
    # All are stored before any is read: a PUT can end copies of other keys (generations are counted by hash).
    for size, stored in made.items():
        with _blocks(client, Case(size, 32, "arena")) as blocks:
            for batch in stored.batches(32):
                stored.fill(batch, blocks)
                _put(client, batch, blocks)
    before = client.stats()["cache_fills"]
    for size, stored in made.items():
        with _blocks(client, Case(size, 32, "arena")) as blocks:
            for batch in stored.batches(32):
                _get(client, batch, blocks)
    if client.stats()["cache_fills"] - before < sum(len(stored.keys) for stored in made.values()):
        raise ValueError("the gateway did not keep copies of all blocks")
    return made


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
    stored: Hot,
    blocks: Sequence[Block],
    seconds: float,
    into: Figures,
) -> None:
    batches = stored.batches(case.batch)
    _get(client, batches[0], blocks)
    hits, cpu = client.stats()["cache_hits"], pod.dataplane.cpu_seconds
    calls, took = _repeat(lambda number: _get(client, batches[number % len(batches)], blocks), seconds)
    moved = calls * case.batch * case.size / 1e9
    into.gets_per_s.append(calls * case.batch / took)
    into.gb_per_s.append(moved / took)
    into.dataplane_cpu.append((pod.dataplane.cpu_seconds - cpu) / moved)
    if client.stats()["cache_hits"] - hits != calls * case.batch:
        raise ValueError(f"{case}: not every GET was answered from the gateway's copies")
    for batch in batches:
        _get(client, batch, blocks)
        stored.check(batch, [block.view for block in blocks])


def _get(client: Client, keys: Sequence[bytes], blocks: Sequence[Block]) -> None:
    replies = client.get(keys, blocks, DIALOG)
    if any(reply.status != Status.OK for reply in replies):
        raise ValueError("a hot block was a miss")


def _borrow(pod: Pod, client: Client, case: Case, stored: Hot, seconds: float, into: Loans) -> None:
    batches = stored.batches(case.batch)
    for batch in batches:
        with client.borrow(batch, DIALOG) as views:
            stored.check(batch, views)
    views = client.borrow(batches[0], DIALOG)
    views.release()
    before, cpu = client.stats(), pod.dataplane.cpu_seconds
    blocks = 0

    def release(number: int) -> None:
        nonlocal blocks
        with client.borrow(batches[number % len(batches)], DIALOG) as views:
            blocks += len(views)

    def exchange(number: int) -> None:
        nonlocal blocks, views
        views = views.exchange(batches[number % len(batches)], DIALOG)
        blocks += len(views)

    _, took = _repeat(release if case == RELEASED else exchange, seconds)
    views.release()
    after, cpu = client.stats(), pod.dataplane.cpu_seconds - cpu
    into.blocks_per_s.append(blocks / took)
    into.blocks_per_busy_s.append(blocks / (after["busy_ns"] - before["busy_ns"]) * 1e9)
    into.blocks_per_cpu_s.append(blocks / cpu)
    if after["borrowed"] - before["borrowed"] != blocks:
        raise ValueError(f"{case}: not every block was lent")


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


def _report(figures: dict[Case, Figures], loans: dict[Case, Loans], copies: list[float], hot: int) -> Report:
    rows = []
    for case, found in figures.items():
        rows.append(Row(str(case), "GETs/s", found.gets_per_s))
        rows.append(Row(f"{case}, speed", "GB/s", found.gb_per_s))
        rows.append(Row(f"{case}, CPU of akv-dataplane", "s/GB", found.dataplane_cpu))
    for case, lent in loans.items():
        rows.append(Row(str(case), "blocks/s", lent.blocks_per_s))
        rows.append(Row(f"{case}, of a worker core", "blocks/s of its busy time", lent.blocks_per_busy_s))
        rows.append(Row(f"{case}, of akv-dataplane", "blocks/s of its CPU", lent.blocks_per_cpu_s))
    rows.append(Row("memcpy of 2048 KiB, one thread", "GB/s", copies))
    best = {row.case: row.median for row in rows}
    large = min(best[f"{Case(2 << 20, 32, place)}, speed"] for place in ("arena", "region"))
    claims = [
        *(
            Claim(f"GETs/s of {case}, a worker core", best[f"{case}, of a worker core"], LIMIT_GETS)
            for case in EXCHANGED
        ),
        Claim("GB/s at 2 MiB x32, the slower of arena and region", large, LIMIT_GB_PER_S),
    ]
    return Report("hot", rows, claims, {"cards": 1, "workers": 1, "hot_bytes": hot})
