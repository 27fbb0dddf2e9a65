"""Keys and dialog ids (docs/protocol.md, "Keys")."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from integration.client.wire import KEY_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A dialog is named by the block that ends this many tokens, or by its last full block where it is shorter.
AFFINITY_TOKENS = 1024


def engine_key(name: ReadableBuffer) -> bytes:
    """The 32-byte key of a block: `name` itself where it has 32 bytes, else its BLAKE2b-256.

    Raises ValueError where it is empty, TypeError where it is no buffer.
    """
    raw = name if isinstance(name, bytes) else _raw(name)
    if not raw:
        raise ValueError("a block's key is empty: give the engine's block hash")
    return raw if len(raw) == KEY_BYTES else blake2b(raw, digest_size=KEY_BYTES).digest()


def _raw(name: ReadableBuffer) -> bytes:
    try:
        # Not bytes(name): of an int that would be as many zeros.
        return bytes(memoryview(name))
    except TypeError:
        kind = type(name).__name__
        raise TypeError(f"a block's key is {kind}: give the engine's block hash as bytes") from None


def default_affinity(block_tokens: int) -> int:
    """Index of the block that ends 1,024 tokens: 1 at 512 tokens a block, 63 at 16."""
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}: it must be at least 1")
    return max(AFFINITY_TOKENS // block_tokens - 1, 0)


def dialog_index(block_tokens: int, affinity_blocks: int | None, full_blocks: int) -> int:
    """Index of the block whose key names the request's dialog."""
    affinity = default_affinity(block_tokens) if affinity_blocks is None else affinity_blocks
    if affinity < 0:
        raise ValueError(f"affinity_blocks is {affinity}: it must be 0 or more")
    return min(max(full_blocks - 1, 0), affinity)


def dialog_id(
    keys: Sequence[ReadableBuffer],
    block_tokens: int,
    affinity_blocks: int | None = None,
    full_blocks: int | None = None,
) -> int:
    """The 64-bit dialog id that routes every block of one request.

    Args:
        keys: the request's block keys from its first block on; a last, partly filled block may be among them.
        block_tokens: tokens in one block.
        affinity_blocks: index of the block that names a dialog; None is the block that ends 1,024 tokens; 0
            names every dialog by its first block.
        full_blocks: how many of the keys are of full blocks; None means all. A request without a full block
            is named by its first one.

    Raises:
        ValueError: there are no keys, or `full_blocks` is more than there are.
    """
    full = len(keys) if full_blocks is None else full_blocks
    if not keys or not 0 <= full <= len(keys):
        raise ValueError(f"a dialog of {len(keys)} keys with {full} full blocks has no id")
    index = dialog_index(block_tokens, affinity_blocks, full)
    digest = blake2b(engine_key(keys[index]), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little")
