"""This project's Python client on its gateway, with one software card in memory behind it over NVMe/TCP."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from functools import lru_cache

from bench.peers.clients.base import Cache
from integration.client import Block, Status, connect

DIALOG = 1


@lru_cache(maxsize=1 << 16)
def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


class Ours(Cache):
    """Blocks of the gateway's shared memory stand for the engine's, as the connectors use it."""

    def __init__(self, memory: mmap.mmap, socket: str) -> None:
        super().__init__(memory)
        self._client = connect(socket=socket, strict=True, timeout=60.0, arena_bytes=2 * len(memory))
        self._blocks: dict[tuple[int, int], list[Block]] = {}

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        statuses = self._client.put([_key(key) for key in keys], self._leased(len(keys), size), DIALOG)
        if any(status != Status.OK for status in statuses):
            raise OSError(f"our put answered {set(statuses)}")

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        replies = self._client.get([_key(key) for key in keys], self._leased(len(keys), size), DIALOG)
        if any(reply.status != Status.OK or reply.length != size for reply in replies):
            raise LookupError(f"our get answered { ({reply.status for reply in replies}) }")

    def exists(self, keys: Sequence[str]) -> int:
        return sum(self._client.exists([_key(key) for key in keys], DIALOG))

    def clear(self, keys: Sequence[str]) -> None:
        self._client.delete([_key(key) for key in keys], DIALOG)

    def fill(self, offsets: Sequence[int], size: int) -> None:
        """Copy what is in the memory to the leased blocks."""
        for offset, block in zip(offsets, self._leased(len(offsets), size), strict=True):
            block.view[:] = self.memory[offset : offset + size]

    def read_back(self, offsets: Sequence[int], size: int) -> None:
        """Copy the leased blocks to the memory, for the check."""
        for offset, block in zip(offsets, self._leased(len(offsets), size), strict=True):
            self.memory[offset : offset + size] = bytes(block.view)

    def close(self) -> None:
        self._client.close()

    def _leased(self, count: int, size: int) -> list[Block]:
        if (count, size) not in self._blocks:
            for blocks in self._blocks.values():
                self._client.free(blocks)
            self._blocks = {(count, size): self._client.alloc(count, size)}
        return self._blocks[count, size]
