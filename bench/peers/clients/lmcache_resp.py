"""LMCache's native RESP client with four workers, on Redis."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import mmap
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - the extension's libraries come with it

from bench.peers.clients.base import Cache

WORKERS = 4
SECONDS = 60.0


def _native_client(host: str, port: int) -> Any:
    """Load the extension alone: the package around it asks for an accelerator."""
    package = importlib.util.find_spec("lmcache")
    if package is None or package.origin is None:
        raise OSError("lmcache is not installed")
    [path] = Path(package.origin).parent.glob("lmcache_redis*.so")
    loader = importlib.machinery.ExtensionFileLoader("lmcache_redis", str(path))
    spec = importlib.util.spec_from_loader("lmcache_redis", loader)
    if spec is None:
        raise OSError(f"{path} can't be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module.LMCacheRedisClient(host, port, WORKERS)


class LMCacheResp(Cache):
    """Submits a batch and waits for its completion."""

    def __init__(self, memory: mmap.mmap, host: str, port: str) -> None:
        super().__init__(memory)
        self._view = memoryview(memory)
        self._client = _native_client(host, int(port))
        self._ready = select.poll()
        self._ready.register(self._client.event_fd(), select.POLLIN)

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        self._wait(self._client.submit_batch_set(list(keys), self._parts(offsets, size)))

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        self._wait(self._client.submit_batch_get(list(keys), self._parts(offsets, size)))

    def exists(self, keys: Sequence[str]) -> int:
        return sum(self._wait(self._client.submit_batch_exists(list(keys))) or [])

    def clear(self, keys: Sequence[str]) -> None:
        self._wait(self._client.submit_batch_delete(list(keys)))

    def close(self) -> None:
        self._client.close()
        self._view.release()

    def _parts(self, offsets: Sequence[int], size: int) -> list[memoryview]:
        return [self._view[offset : offset + size] for offset in offsets]

    def _wait(self, wanted: int) -> list[bool] | None:
        while True:
            for number, done, error, found in self._client.drain_completions():
                if not done:
                    raise LookupError(f"the RESP client answered {error}")
                if number == wanted:
                    answer: list[bool] | None = found
                    return answer
            if not self._ready.poll(SECONDS * 1000):
                raise TimeoutError(f"the RESP client did not answer in {SECONDS} s")
