"""Frames of the gateway's wire protocol, written from docs/protocol.md alone."""

from __future__ import annotations

import struct

HEADER = struct.Struct("<IIHHIQQ")
ENTRY = struct.Struct("<32sQIHH")
REPLY, ERROR = 0x8000, 0xFFFF
HELLO, ALLOC, FREE, PUT, GET, EXISTS, DELETE, STATS, REGISTER, UNREGISTER = range(1, 11)
RELEASED, BORROW, RETURN = 11, 12, 13
MISS, NOT_STORED, LATE = 1, 2, 6
BAD_REQUEST, UNSUPPORTED, NO_MEMORY, NO_SUCH_BLOCK = 4, 5, 6, 7
INLINE = 0xFFFF


def u32(value: int) -> bytes:
    """Four bytes, little-endian."""
    return value.to_bytes(4, "little")


def frame(
    opcode: int, body: bytes = b"", *, count: int = 0, request: int = 0, dialog: int = 0, status: int = 0
) -> bytes:
    """One frame."""
    return HEADER.pack(0x31564B41, len(body), opcode, status, count, request, dialog) + body


def hello(features: int, arena: int, namespace: str, versions: tuple[int, int] = (1, 1)) -> bytes:
    """A HELLO frame with the client nonce 00 01 02 ... and without a proof of a secret."""
    name = namespace.encode()
    fixed = struct.pack("<HHIQ", *versions, features, arena) + bytes(range(32)) + bytes(32)
    return frame(HELLO, fixed + struct.pack("<H", len(name)) + name, request=1)


def welcome(
    arena: int,
    session: int,
    *,
    regions: tuple[int, int] | None = None,
    cache: tuple[int, int] | None = None,
) -> bytes:
    """The OK reply to HELLO of a gateway with the default limits.

    `regions`: their number and bytes; `cache`: bytes of its memory and how many blocks may be borrowed.
    """
    body = struct.pack(
        "<HHIQIIIIIIQ",
        1,
        0,
        bool(arena) | 2 * (regions is not None) | 4 * (cache is not None),
        arena,
        4096,
        4096,
        32,
        (32 << 20) + (256 << 10),
        32 << 20,
        16_384,
        session,
    )
    more = struct.pack("<IIQ", regions[0], 0, regions[1]) if regions else b""
    more += struct.pack("<QII", *cache, 0) if cache else b""
    return frame(HELLO | REPLY, body + bytes(32) + more, request=1)


def refusal(opcode: int, status: int, text: str, request: int) -> bytes:
    """A reply or ERROR frame whose body is a sentence."""
    return frame(opcode, text.encode(), request=request, status=status)
