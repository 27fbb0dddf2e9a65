"""One client process: `worker.py CACHE ARGUMENT…` takes orders as JSON lines and answers each with one.

    {"do": "prepare", "op": "put", "size": 1048576, "batch": 32, "rounds": 16}
    {"do": "run"}      -> {"seconds", "cpu_seconds", "blocks"}
    {"do": "finish"}   -> {"wrong": blocks that came back with other bytes than were put}

Rounds have keys of their own, so that a put never meets a stored key, and each block bears the stamp of its
key at both ends, so that no block passes for that of another round or place. Between rounds, while the clocks
stand, stamps are written before a put, and wiped before a get and compared after it. More than the stamps is
not touched: filled anew, blocks would lie in a core's caches otherwise than an engine's do. Standard library
only.
"""

from __future__ import annotations

import importlib
import json
import mmap
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.clients.base import Cache

CACHES = {
    "loopback": ("bench.peers.clients.loopback", "Loopback"),
    "ours-arena": ("bench.peers.clients.ours", "OursArena"),
    "ours-region": ("bench.peers.clients.ours", "OursRegion"),
    "mooncake": ("bench.peers.clients.mooncake", "Mooncake"),
    "lmcache-resp": ("bench.peers.clients.lmcache_resp", "LMCacheResp"),
    "redis-py": ("bench.peers.clients.redis_py", "RedisPy"),
}
_STAMP = 64
_NO_STAMPS = (bytes(_STAMP), bytes(_STAMP))
# Values are stored for `exists` in parts: not every cache takes a put of thousands.
_PART = 32


@dataclass(frozen=True)
class Case:
    """What is measured: `rounds` batches of `batch` blocks of `size` bytes."""

    op: str
    size: int
    batch: int
    rounds: int


class Clocks:
    """Elapsed time and CPU time of this process within its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def __enter__(self) -> None:
        self.cpu_seconds -= time.process_time()
        self.seconds -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += time.process_time()


class Worker:
    """Prepares, runs and checks one case after the other."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._case = Case("put", 0, 0, 0)
        self._number = 0
        self._wrong = 0

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Take a case; what a get or exists asks for is stored now."""
        self._case = Case(order["op"], order["size"], order["batch"], order["rounds"])
        self._number += 1
        self._wrong = 0
        if self._case.op == "exists":
            self._store_for_exists()
            return {}
        self._cache.fill(self._offsets, self._case.size)
        if self._case.op == "get":
            self._each_round(self._put)
        return {}

    def run(self) -> dict[str, Any]:
        """Do the measured part."""
        case = self._case
        work = {"put": self._put, "get": self._get, "exists": self._exists}[case.op]
        clocks = self._each_round(work)
        blocks = case.rounds * case.batch
        return {"seconds": clocks.seconds, "cpu_seconds": clocks.cpu_seconds, "blocks": blocks}

    def finish(self) -> dict[str, Any]:
        """Read what was put back, and remove everything. What was got is compared already."""
        if self._case.op == "put":
            self._each_round(self._get)
        for number in range(self._case.rounds):
            self._cache.clear(self._keys(number))
        return {"wrong": self._wrong}

    def _each_round(self, work: Callable[[int, Clocks], None]) -> Clocks:
        """All rounds; what `work` times of them."""
        clocks = Clocks()
        for number in range(self._case.rounds):
            work(number, clocks)
        return clocks

    def _store_for_exists(self) -> None:
        for number in range(self._case.rounds):
            keys, offsets = self._keys(number), self._offsets
            for start in range(0, len(keys), _PART):
                part = slice(start, start + _PART)
                self._cache.put(keys[part], offsets[part], self._case.size)

    @property
    def _offsets(self) -> list[int]:
        return [number * self._case.size for number in range(self._case.batch)]

    def _keys(self, round_number: int) -> list[str]:
        return [f"{self._number}/{round_number}/{place}" for place in range(self._case.batch)]

    def _put(self, number: int, clocks: Clocks) -> None:
        keys, offsets = self._keys(number), self._offsets
        self._stamp([_stamps(key) for key in keys])
        with clocks:
            self._cache.put(keys, offsets, self._case.size)

    def _get(self, number: int, clocks: Clocks) -> None:
        keys, offsets = self._keys(number), self._offsets
        # What was put or got before is there no longer: a get that brings nothing can't pass either.
        self._stamp([_NO_STAMPS] * len(keys))
        with clocks:
            self._cache.get(keys, offsets, self._case.size)
        found = self._cache.views(offsets, self._case.size)
        for key, view in zip(keys, found, strict=True):
            self._wrong += (bytes(view[:_STAMP]), bytes(view[-_STAMP:])) != _stamps(key)

    def _exists(self, number: int, clocks: Clocks) -> None:
        keys = self._keys(number)
        with clocks:
            found = self._cache.exists(keys)
        if found != self._case.batch:
            raise LookupError("a stored key was not found")

    def _stamp(self, stamps: Sequence[tuple[bytes, bytes]]) -> None:
        views = self._cache.views(self._offsets, self._case.size)
        for view, (head, tail) in zip(views, stamps, strict=True):
            view[:_STAMP], view[-_STAMP:] = head, tail


def _stamps(key: str) -> tuple[bytes, bytes]:
    """What the block of a key begins and ends with."""
    return f"{key} begins".encode().ljust(_STAMP, b"."), f"{key} ends".encode().rjust(_STAMP, b".")


def main() -> None:
    """Serve orders until the input ends."""
    name, size, *arguments = sys.argv[1:]
    module, kind = CACHES[name]
    memory = mmap.mmap(-1, int(size))
    memory[:] = b"\1" * len(memory)
    cache: Cache = getattr(importlib.import_module(module), kind)(memory, *arguments)
    worker = Worker(cache)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = worker.prepare(order) if order["do"] == "prepare" else getattr(worker, order["do"])()
        print(json.dumps(answer), flush=True)
    cache.close()


if __name__ == "__main__":
    main()
