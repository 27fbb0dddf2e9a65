"""Bytes of blocks, derived from their keys: a wrong or shifted block can't pass for the right one."""

from __future__ import annotations

import random
from hashlib import blake2b

DIGEST_BYTES = 64
# Far above what a gateway takes (it tells so itself), and still a size that this process can allocate.
MOST_BYTES = 1 << 30
_STREAM_BYTES = 1 << 20


class Payloads:
    """Makes and checks blocks of `block_bytes` bytes.

    A block is the 64-byte BLAKE2b of its key, then a slice of one fixed pseudo-random stream of 1 MiB
    (repeated for larger blocks) at an offset that the digest gives: two copies and no arithmetic for each
    block.
    """

    def __init__(self, block_bytes: int) -> None:
        if not DIGEST_BYTES <= block_bytes <= MOST_BYTES:
            raise ValueError(
                f"block_bytes is {block_bytes}: it must be at least {DIGEST_BYTES} and at most {MOST_BYTES}"
            )
        self._rest = block_bytes - DIGEST_BYTES
        stream = random.Random("akv-bench payload").randbytes(_STREAM_BYTES)
        self._stream = memoryview(stream * (1 + -(-block_bytes // _STREAM_BYTES)))

    def fill(self, key: bytes, memory: memoryview) -> None:
        """Write the block of `key` into `memory`."""
        digest, offset = self._parts(key)
        memory[:DIGEST_BYTES] = digest
        memory[DIGEST_BYTES:] = self._stream[offset : offset + self._rest]

    def matches(self, key: bytes, memory: memoryview) -> bool:
        """Every byte of `memory` is of the block of `key`."""
        digest, offset = self._parts(key)
        # As bytes both sides compare by memcmp; memoryviews compare element by element.
        return memory[:DIGEST_BYTES] == digest and bytes(memory[DIGEST_BYTES:]) == bytes(
            self._stream[offset : offset + self._rest]
        )

    def _parts(self, key: bytes) -> tuple[bytes, int]:
        digest = blake2b(key, digest_size=DIGEST_BYTES).digest()
        return digest, int.from_bytes(digest[:4], "little") % _STREAM_BYTES
