"""Blocks that a client of a test stores."""

from __future__ import annotations

from integration.client import Client, Status

KEYS = [bytes([i]) * 32 for i in range(8)]
BLOCK_BYTES = 5000


def store_blocks(client: Client, count: int) -> list[bytes]:
    """Store `count` blocks under the first of KEYS; their bytes."""
    blocks = client.alloc(count, BLOCK_BYTES)
    data = [bytes([i + 1]) * BLOCK_BYTES for i in range(count)]
    for block, content in zip(blocks, data, strict=True):
        block.view[:] = content
    assert client.put(KEYS[:count], blocks, 1) == [Status.OK] * count
    client.free(blocks)
    return data
