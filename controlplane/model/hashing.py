"""The hash functions that Python and C++ share (DESIGN.md, "Slot plan").

All integers are unsigned 64-bit; the C++ twin is dataplane/core/kv; both are held to
tests/vectors/routing.json.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

SLOTS: Final = 8
LAYOUT_VERSION: Final = 1

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


def fmix(x: int) -> int:
    """Finalize a 64-bit value (the finalizer of splitmix64): every input bit reaches every output bit."""
    x &= _MASK
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & _MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def mix64(dialog: int, slot: int) -> int:
    """Weight of `slot` (0..7) for a 64-bit dialog id: the rendezvous hash that routes."""
    return fmix(dialog ^ fmix((slot + 1) * _GOLDEN & _MASK))


@lru_cache(maxsize=1024)
def slot_weight(serial: str, slot: int) -> int:
    """Weight of a card in a slot, by which cards and slots rank each other alike."""
    digest = blake2b(b"akv-slot-1\0" + bytes([slot]) + serial.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little")
