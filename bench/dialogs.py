"""From rows of a trace to what the client is asked for: keys and dialogs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from bench.trace import BLOCK_TOKENS, TraceRow
from integration.client import dialog_id
from integration.client.keys import dialog_index


def block_key(hash_id: int) -> bytes:
    """The 32-byte key of a block of the trace."""
    return blake2b(hash_id.to_bytes(8, "little"), digest_size=32, person=b"akv-bench-key").digest()


@dataclass(frozen=True, slots=True)
class Request:
    """One request: keys in order, the dialog, and the index of the block that names the dialog."""

    keys: Sequence[bytes]
    dialog: int
    affinity: int


def request_of(
    row: TraceRow, block_tokens: int = BLOCK_TOKENS, affinity_blocks: int | None = None
) -> Request:
    """What an engine asks for when it gets the row's prompt."""
    full = row.full_blocks(block_tokens)
    keys = [block_key(hash_id) for hash_id in row.hash_ids]
    dialog = dialog_id(keys, block_tokens, affinity_blocks, full)
    return Request(keys, dialog, dialog_index(block_tokens, affinity_blocks, full))
