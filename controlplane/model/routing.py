"""Routing: which slot a dialog's blocks go to (rendezvous hashing over the routable slots)."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b

from controlplane.model.hashing import mix64


def slot_for_dialog(dialog: int, routable: Collection[int]) -> int | None:
    """Routable slot with the highest weight for a 64-bit dialog id; ties go to the lower slot.

    None when no slot is routable. Taking a slot out moves only the dialogs that it had; its return brings
    them back.
    """
    return max(sorted(routable), key=lambda slot: mix64(dialog, slot), default=None)


def dialog_id(block_key: bytes) -> int:
    """Dialog id of a request from the 32-byte key of its affinity block (docs/protocol.md, "Keys")."""
    if len(block_key) != 32:
        raise ValueError(f"a block key has 32 bytes, not {len(block_key)}")
    return int.from_bytes(blake2b(block_key, digest_size=16).digest()[:8], "little")


def affinity_index(block_tokens: int) -> int:
    """Default index of the affinity block: the one that ends 1,024 tokens (1 at 512 tokens, 63 at 16)."""
    if block_tokens < 1:
        raise ValueError(f"a block has at least one token, not {block_tokens}")
    return max(1024 // block_tokens - 1, 0)
