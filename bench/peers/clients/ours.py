"""This project's client on its gateway, with one software card in memory behind it over NVMe/TCP."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache

from bench.peers.clients.base import Cache
from integration.client import Block, Client, Status, connect

DIALOG = 1


@lru_cache(maxsize=1 << 16)
def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


class Ours(Cache):
    """What both ways of sharing memory have in common."""

    def __init__(self, memory: mmap.mmap, client: Client) -> None:
        super().__init__(memory)
        self._client = client
        self._blocks: dict[tuple[int, int], list[Block]] = {}

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        statuses = self._client.put([_key(key) for key in keys], self._shared(offsets, size), DIALOG)
        if any(status != Status.OK for status in statuses):
            raise OSError(f"our put answered {set(statuses)}")

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        replies = self._client.get([_key(key) for key in keys], self._shared(offsets, size), DIALOG)
        if any(reply.status != Status.OK or reply.length != size for reply in replies):
            raise LookupError(f"our get answered { ({reply.status for reply in replies}) }")

    def exists(self, keys: Sequence[str]) -> int:
        return sum(self._client.exists([_key(key) for key in keys], DIALOG))

    def clear(self, keys: Sequence[str]) -> None:
        self._client.delete([_key(key) for key in keys], DIALOG)

    def close(self) -> None:
        self._client.close()

    def _shared(self, offsets: Sequence[int], size: int) -> list[Block]:
        case = (len(offsets), size)
        if case not in self._blocks:
            for blocks in self._blocks.values():
                self._client.free(blocks)
            self._blocks = {case: self._make(offsets, size)}
        return self._blocks[case]

    def _make(self, offsets: Sequence[int], size: int) -> list[Block]:
        raise NotImplementedError


class OursArena(Ours):
    """Blocks of the gateway's shared memory stand for the engine's."""

    def __init__(self, memory: mmap.mmap, socket: str) -> None:
        arena_bytes = 2 * len(memory)
        super().__init__(memory, connect(socket=socket, strict=True, timeout=60.0, arena_bytes=arena_bytes))

    def fill(self, offsets: Sequence[int], size: int) -> None:
        """Copy what is in the memory to the leased blocks."""
        for offset, block in zip(offsets, self._shared(offsets, size), strict=True):
            block.view[:] = self.memory[offset : offset + size]

    def views(self, offsets: Sequence[int], size: int) -> list[memoryview]:
        """The leased blocks."""
        return [block.view for block in self._shared(offsets, size)]

    def _make(self, offsets: Sequence[int], size: int) -> list[Block]:
        return self._client.alloc(len(offsets), size)


class OursRegion(Ours):
    """The engine's memory is registered with the gateway: cards read and write it."""

    def __init__(self, memory: mmap.mmap, socket: str) -> None:
        descriptor = os.memfd_create("bench")
        os.truncate(descriptor, len(memory))
        client = connect(socket=socket, strict=True, timeout=60.0, arena_bytes=0)
        super().__init__(mmap.mmap(descriptor, len(memory)), client)
        # Every page is there, as in the memory that is given to the others.
        self.memory[:] = memory[:]
        self._region = client.register(descriptor)
        os.close(descriptor)

    def _make(self, offsets: Sequence[int], size: int) -> list[Block]:
        return [self._region.block(offset, size) for offset in offsets]
