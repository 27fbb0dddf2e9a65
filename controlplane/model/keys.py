"""Card keys: the 16 bytes under which a block lies on a card (DESIGN.md, "Keys, values")."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from controlplane.model.hashing import LAYOUT_VERSION

NO_SECRET: Final = bytes(32)


def db_index(engine_key: bytes, num_dbs: int) -> int:
    """Partition of the card's key space that a block belongs to, 0 .. num_dbs - 1."""
    return int.from_bytes(engine_key[:4], "little") % num_dbs


def card_key(namespace: str, engine_key: bytes, num_dbs: int, secret: bytes = NO_SECRET) -> bytes:
    """Derive the 16-byte card key of a 32-byte engine key.

    BLAKE2b-128, keyed with the namespace's 32-byte secret, over fields that each have a u32 length before
    them: label, u32 layout version, namespace, u32 num_dbs, u32 db index, engine key; integers little-endian.
    """
    if len(engine_key) != 32 or len(secret) != 32:
        raise ValueError(f"engine key and secret have 32 bytes, not {len(engine_key)} and {len(secret)}")
    fields = (
        b"akv-key-1",
        LAYOUT_VERSION.to_bytes(4, "little"),
        namespace.encode(),
        num_dbs.to_bytes(4, "little"),
        db_index(engine_key, num_dbs).to_bytes(4, "little"),
        engine_key,
    )
    text = b"".join(len(field).to_bytes(4, "little") + field for field in fields)
    return blake2b(text, digest_size=16, key=secret).digest()
