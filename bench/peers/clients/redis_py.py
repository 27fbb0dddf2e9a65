"""redis-py with hiredis on Redis' Unix socket, a pipeline for each batch."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import redis

from bench.peers.clients.base import Cache


class RedisPy(Cache):
    """MGET and a pipeline of SET."""

    def __init__(self, memory: mmap.mmap, socket: str) -> None:
        super().__init__(memory)
        self._client = redis.Redis(unix_socket_path=socket, socket_timeout=60.0)

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for key, offset in zip(keys, offsets, strict=True):
            pipeline.set(key, self.memory[offset : offset + size])
        if not all(pipeline.execute()):
            raise OSError("Redis did not store a value")

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        for value, offset in zip(self._client.mget(list(keys)), offsets, strict=True):
            if value is None or len(value) != size:
                raise LookupError("Redis missed a key")
            self.memory[offset : offset + size] = value

    def exists(self, keys: Sequence[str]) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key)
        return sum(pipeline.execute())

    def clear(self, keys: Sequence[str]) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()
