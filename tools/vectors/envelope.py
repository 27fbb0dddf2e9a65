"""Vectors of card keys and of the envelopes around values (docs/protocol.md)."""

from __future__ import annotations

import math
import random
import struct
from hashlib import blake2b
from typing import Any

from tools.vectors.frames import u32


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def field(data: bytes) -> bytes:
    """A field with its u32 length before it."""
    return u32(len(data)) + data


def card_key(label: bytes, namespace: str, secret: bytes, num_dbs: int, key: bytes, *more: int) -> bytes:
    """The card key of a value (`akv-key-1`) or of a further segment (`akv-segment-1`)."""
    db = int.from_bytes(key[:4], "little") % num_dbs
    parts = [label, u32(1), namespace.encode(), u32(num_dbs), u32(db), key, *map(u32, more)]
    return blake2b(b"".join(map(field, parts)), digest_size=16, key=secret).digest()


def namespace_id(namespace: str) -> bytes:
    """The namespace's name in envelopes."""
    return blake2b(b"akv-ns-1\0" + namespace.encode(), digest_size=16).digest()[:4]


def envelope(namespace: str, key: bytes, value: bytes, start: int, end: int, index: int, count: int) -> bytes:
    """The envelope of value[start:end], segment `index` of `count`."""
    fixed = struct.pack("<IBBHHH", 0x45564B41, 1, 0, index, count, 0)
    lengths = struct.pack("<III", end - start, len(value), crc32c(value[:end]))
    body = fixed + namespace_id(namespace) + key + lengths
    return body + u32(crc32c(body))


def cut(total: int, room: int) -> list[tuple[int, int]]:
    """(start, end) of each segment of a value of `total` bytes where a segment has at most `room`."""
    if total <= room:
        return [(0, total)]
    count = -(-total // (room // 4096 * 4096))
    pages = math.ceil(total / count / 4096)
    each = pages * 4096
    return [(start, min(start + each, total)) for start in range(0, total, each)]


def envelope_vectors() -> dict[str, Any]:
    """Values, whole and in segments, and how lengths are cut."""
    rng = random.Random(20260711)
    secret = bytes(range(100, 132))
    values = [
        _value("default", bytes(32), rng.randbytes(32), rng.randbytes(1), 65536),
        _value("default", bytes(32), rng.randbytes(32), rng.randbytes(100), 65536),
        _value("modèle-7b", secret, rng.randbytes(32), rng.randbytes(4096), 4096),
        _value("modèle-7b", secret, rng.randbytes(32), rng.randbytes(9000), 4096),
        _value("default", bytes(32), rng.randbytes(32), rng.randbytes(12_288), 5000),
    ]
    cuts = [
        _cut(1, 4096),
        _cut(4096, 4096),
        _cut(4097, 4096),
        _cut(3 << 20, 1 << 20),
        _cut((3 << 20) + 1, 1 << 20),
        _cut(10 << 20, 4 << 20),
    ]
    return {"values": values, "cuts": cuts}


def _value(namespace: str, secret: bytes, key: bytes, value: bytes, room: int) -> dict[str, Any]:
    """A value under `key`, on a card that takes `room` bytes of payload in one value."""
    parts = cut(len(value), room)
    segments = []
    for index, (start, end) in enumerate(parts):
        label, more = (b"akv-segment-1", (index, len(parts), len(value))) if index else (b"akv-key-1", ())
        segments.append(
            {
                "card_key": card_key(label, namespace, secret, 128, key, *more).hex(),
                "envelope": envelope(namespace, key, value, start, end, index, len(parts)).hex(),
                "start": start,
                "end": end,
            }
        )
    return {
        "namespace": namespace,
        "secret": secret.hex(),
        "num_dbs": 128,
        "engine_key": key.hex(),
        "max_value_bytes": room + 64,
        "value": value.hex(),
        "segments": segments,
    }


def _cut(total: int, room: int) -> dict[str, Any]:
    segments = [list(part) for part in cut(total, room)]
    return {"total": total, "max_value_bytes": room + 64, "segments": segments}
