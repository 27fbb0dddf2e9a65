"""One client process: `worker.py CACHE ARGUMENT…` takes orders as JSON lines and answers each with one.

    {"do": "prepare", "op": "put", "size": 1048576, "batch": 32, "rounds": 16}
    {"do": "run"}      -> {"seconds", "cpu_seconds", "blocks"}
    {"do": "finish"}   -> {"wrong": blocks that came back with other bytes than were put}

Rounds have keys of their own, so that a put never meets a stored key. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import resource
import sys
import time
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
# Values are stored for `exists` in parts: not every cache takes a put of thousands.
_PART = 32


@dataclass(frozen=True)
class Case:
    """What is measured: `rounds` batches of `batch` blocks of `size` bytes."""

    op: str
    size: int
    batch: int
    rounds: int


class Worker:
    """Prepares, runs and checks one case after the other."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._case = Case("put", 0, 0, 0)
        self._number = 0

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Take a case; what a get or exists asks for is stored now."""
        self._case = Case(order["op"], order["size"], order["batch"], order["rounds"])
        self._number += 1
        if self._case.op == "exists":
            self._store_for_exists()
            return {}
        self._stamp()
        self._cache.fill(self._offsets, self._case.size)
        if self._case.op == "get":
            self._put_all()
        return {}

    def run(self) -> dict[str, Any]:
        """Do the measured part."""
        case = self._case
        work = {"put": self._put_all, "get": self._get_all, "exists": self._exists_all}[case.op]
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work()
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"seconds": seconds, "cpu_seconds": cpu, "blocks": case.rounds * case.batch}

    def finish(self) -> dict[str, Any]:
        """Read the last round of blocks back, compare, and remove everything."""
        wrong = 0 if self._case.op == "exists" else self._count_wrong()
        for number in range(self._case.rounds):
            self._cache.clear(self._keys(number))
        return {"wrong": wrong}

    def _count_wrong(self) -> int:
        case, before = self._case, self._marks()
        self._cache.memory[: case.size * case.batch] = bytes(case.size * case.batch)
        self._cache.get(self._keys(case.rounds - 1), self._offsets, case.size)
        self._cache.read_back(self._offsets, case.size)
        return sum(now != mark for now, mark in zip(self._marks(), before, strict=True))

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

    def _stamp(self) -> None:
        """Give each block bytes of its own at both ends."""
        for offset in self._offsets:
            self._cache.memory[offset : offset + _STAMP] = os.urandom(_STAMP)
            end = offset + self._case.size
            self._cache.memory[end - _STAMP : end] = os.urandom(_STAMP)

    def _marks(self) -> list[bytes]:
        size, memory = self._case.size, self._cache.memory
        return [memory[at : at + _STAMP] + memory[at + size - _STAMP : at + size] for at in self._offsets]

    def _put_all(self) -> None:
        for number in range(self._case.rounds):
            self._cache.put(self._keys(number), self._offsets, self._case.size)

    def _get_all(self) -> None:
        for number in range(self._case.rounds):
            self._cache.get(self._keys(number), self._offsets, self._case.size)

    def _exists_all(self) -> None:
        for number in range(self._case.rounds):
            if self._cache.exists(self._keys(number)) != self._case.batch:
                raise LookupError("a stored key was not found")


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
