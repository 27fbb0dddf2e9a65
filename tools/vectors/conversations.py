"""Vectors of the gateway's wire protocol: whole conversations, and proofs of a namespace's secret."""

from __future__ import annotations

import hmac
import random
import struct
from typing import Any

from tools.vectors.frames import (
    ALLOC,
    BAD_REQUEST,
    BORROW,
    DELETE,
    ENTRY,
    ERROR,
    EXISTS,
    FREE,
    GET,
    INLINE,
    LATE,
    MISS,
    NO_MEMORY,
    NO_SUCH_BLOCK,
    NOT_STORED,
    PUT,
    REGISTER,
    RELEASED,
    REPLY,
    RETURN,
    STATS,
    UNREGISTER,
    UNSUPPORTED,
    frame,
    hello,
    refusal,
    u32,
    welcome,
)


def step(name: str, send: bytes, expect: bytes) -> dict[str, str]:
    """One exchange of a conversation."""
    return {"name": name, "send": send.hex(), "expect": expect.hex()}


def _shared_steps(keys: list[bytes]) -> list[dict[str, str]]:
    a, b, c = keys
    offsets = struct.pack("<QQ", 0, 4096)
    entries = ENTRY.pack(a, 0, 4096, 0, 0) + ENTRY.pack(b, 4096, 100, 0, 0)
    odd = ENTRY.pack(a, 8192, 10, 0, 0) + ENTRY.pack(c, 0, 10, 0, 0)
    return [
        step("hello", hello(1, 3 * 4096, "default"), welcome(3 * 4096, 1)),
        step(
            "alloc",
            frame(ALLOC, u32(4096) + u32(100), count=2, request=2),
            frame(ALLOC | REPLY, offsets, count=2, request=2),
        ),
        step(
            "alloc more than there is",
            frame(ALLOC, u32(8192), count=1, request=3),
            refusal(ALLOC | REPLY, NO_MEMORY, "the session's memory has no room for these blocks", 3),
        ),
        step(
            "put",
            frame(PUT, entries, count=2, request=4, dialog=77),
            frame(PUT | REPLY, u32(0) * 2, count=2, request=4),
        ),
        step(
            "get",
            frame(GET, entries, count=2, request=5, dialog=77),
            frame(GET | REPLY, struct.pack("<IIII", 0, 4096, 0, 100), count=2, request=5),
        ),
        step(
            "get into no block, and of an absent key",
            frame(GET, odd, count=2, request=6, dialog=77),
            frame(GET | REPLY, struct.pack("<IIII", 4, 0, 1, 0), count=2, request=6),
        ),
        step(
            "get into too little",
            frame(GET, ENTRY.pack(b, 4096, 99, 0, 0), count=1, request=7, dialog=77),
            frame(GET | REPLY, struct.pack("<II", 5, 100), count=1, request=7),
        ),
        step("free", frame(FREE, offsets, count=2, request=8), frame(FREE | REPLY, count=2, request=8)),
        step(
            "free again",
            frame(FREE, offsets[:8], count=1, request=9),
            refusal(FREE | REPLY, NO_SUCH_BLOCK, "an offset is not that of a leased block", 9),
        ),
    ]


def _inline_steps(keys: list[bytes]) -> list[dict[str, str]]:
    a, b, c = keys
    payloads = bytes(range(5)) + bytes(range(250, 255))
    put = ENTRY.pack(a, 0, 5, INLINE, 0) + ENTRY.pack(b, 0, 5, INLINE, 0) + payloads
    get = ENTRY.pack(a, 0, 16, INLINE, 0) + ENTRY.pack(c, 0, 16, INLINE, 0) + ENTRY.pack(b, 0, 16, INLINE, 0)
    found = struct.pack("<IIIIII", 0, 5, 1, 0, 0, 5) + payloads
    return [
        step("hello", hello(0, 0, "default"), welcome(0, 1)),
        step(
            "put",
            frame(PUT, put, count=2, request=2, dialog=5),
            frame(PUT | REPLY, u32(0) * 2, count=2, request=2),
        ),
        step(
            "get",
            frame(GET, get, count=3, request=3, dialog=5),
            frame(GET | REPLY, found, count=3, request=3),
        ),
        step(
            "exists",
            frame(EXISTS, a + c + b, count=3, request=4, dialog=5),
            frame(EXISTS | REPLY, struct.pack("<II", 1, 0) + b"\x05", count=3, request=4),
        ),
        step(
            "longest prefix",
            frame(EXISTS, a + c + b, count=3, request=5, dialog=5, status=1),
            frame(EXISTS | REPLY, struct.pack("<II", 1, 0) + b"\x01", count=3, request=5),
        ),
        step(
            "delete",
            frame(DELETE, a + c, count=2, request=6, dialog=5),
            frame(DELETE | REPLY, u32(0) * 2, count=2, request=6),
        ),
        step(
            "exists after delete",
            frame(EXISTS, a, count=1, request=7, dialog=5),
            frame(EXISTS | REPLY, struct.pack("<II", 0, 0) + b"\0", count=1, request=7),
        ),
        step(
            "an unknown opcode",
            frame(9, b"abc", request=8),
            refusal(ERROR, UNSUPPORTED, "opcode 9 is not known in version 1", 8),
        ),
        step(
            "a bad body",
            frame(EXISTS, a[:31], count=1, request=9),
            refusal(ERROR, BAD_REQUEST, "the body has 31 bytes, but 1 entries take 32", 9),
        ),
    ]


def _registered(offset: int, length: int, file_bytes: int) -> dict[str, Any]:
    """The session's first region, which gets number 1: `length` bytes of a file, from `offset` on."""
    return {
        **step(
            "register",
            frame(REGISTER, struct.pack("<QQ", offset, length), count=1, request=2),
            frame(REGISTER | REPLY, struct.pack("<Q", 1), count=1, request=2),
        ),
        "descriptor_bytes": file_bytes,
    }


def _region_steps() -> list[dict[str, Any]]:
    """A region of 16 KiB, one page into a file of 20 KiB; blocks in it need no alignment."""
    a, b = b"\x11" * 32, b"\x22" * 32

    def entries(*places: tuple[bytes, int, int, int]) -> bytes:
        return b"".join(ENTRY.pack(key, offset, length, region, 0) for key, offset, length, region in places)

    outside = entries((a, 0x3001, 4096, 1), (a, 0, 4096, 2))
    number = struct.pack("<Q", 1)
    return [
        step("hello", hello(2, 0, "default"), welcome(0, 1, regions=(16, 64 << 30))),
        _registered(4096, 16_384, 20_480),
        {
            **step(
                "register past the file's end",
                frame(REGISTER, struct.pack("<QQ", 0, 8192), count=1, request=3),
                refusal(ERROR, BAD_REQUEST, "the file has 4096 bytes, the region ends at 8192", 3),
            ),
            "descriptor_bytes": 4096,
        },
        step(
            "put",
            frame(PUT, entries((a, 1, 4096, 1), (b, 0x3FFF, 1, 1)), count=2, request=4, dialog=77),
            frame(PUT | REPLY, u32(0) * 2, count=2, request=4),
        ),
        step(
            "get",
            frame(GET, entries((a, 0x1001, 8192, 1), (b, 0x3FFE, 2, 1)), count=2, request=5, dialog=77),
            frame(GET | REPLY, struct.pack("<IIII", 0, 4096, 0, 1), count=2, request=5),
        ),
        step(
            "get into bytes outside, and into no region",
            frame(GET, outside, count=2, request=6, dialog=77),
            frame(GET | REPLY, struct.pack("<IIII", 4, 0, 4, 0), count=2, request=6),
        ),
        step(
            "unregister",
            frame(UNREGISTER, number, count=1, request=7),
            frame(UNREGISTER | REPLY, count=1, request=7),
        ),
        step(
            "unregister again",
            frame(UNREGISTER, number, count=1, request=8),
            refusal(UNREGISTER | REPLY, NO_SUCH_BLOCK, "the number is not that of a region", 8),
        ),
    ]


def _borrowing_steps(keys: list[bytes]) -> list[dict[str, str]]:
    """A read cache of 256 KiB that is lent. A GET brings the copy, which is then read in place."""
    a, b, _ = keys
    entry = ENTRY.pack(a, 0, 100, 0, 0)
    lent, not_cached = struct.pack("<IIQ", 0, 100, 0), struct.pack("<IIQ", 7, 0, 0)
    offset = bytes(8)
    text = "an offset is not that of a borrowed block"
    return [
        step(
            "hello",
            hello(7, 4096, "default"),
            welcome(4096, 1, regions=(16, 64 << 30), cache=(256 << 10, 16_384)),
        ),
        step(
            "alloc",
            frame(ALLOC, u32(100), count=1, request=2),
            frame(ALLOC | REPLY, bytes(8), count=1, request=2),
        ),
        step(
            "put",
            frame(PUT, entry, count=1, request=3, dialog=77),
            frame(PUT | REPLY, u32(0), count=1, request=3),
        ),
        step(
            "get",
            frame(GET, entry, count=1, request=4, dialog=77),
            frame(GET | REPLY, struct.pack("<II", 0, 100), count=1, request=4),
        ),
        step(
            "borrow",
            frame(BORROW, a + b, count=2, request=5, dialog=77),
            frame(BORROW | REPLY, lent + not_cached, count=2, request=5),
        ),
        step("return", frame(RETURN, offset, count=1, request=6), frame(RETURN | REPLY, count=1, request=6)),
        step(
            "return again",
            frame(RETURN, offset, count=1, request=7),
            refusal(RETURN | REPLY, NO_SUCH_BLOCK, text, 7),
        ),
    ]


def _late_steps() -> list[dict[str, Any]]:
    """A region of one page; the card misses the deadline of a GET, and lets go later."""
    key = b"\x33" * 32
    entry = ENTRY.pack(key, 0, 100, 1, 0)
    return [
        step("hello", hello(2, 0, "default"), welcome(0, 1, regions=(16, 64 << 30))),
        _registered(0, 4096, 4096),
        step(
            "put",
            frame(PUT, entry, count=1, request=3, dialog=77),
            frame(PUT | REPLY, u32(0), count=1, request=3),
        ),
        {
            **step(
                "get",
                frame(GET, entry, count=1, request=4, dialog=77),
                frame(GET | REPLY, struct.pack("<II", LATE, 0), count=1, request=4),
            ),
            "card": "misses the deadline",
        },
        step(
            "put of the same bytes",
            frame(PUT, entry, count=1, request=5, dialog=77),
            frame(PUT | REPLY, u32(NOT_STORED), count=1, request=5),
        ),
        step(
            "get into the same bytes",
            frame(GET, entry, count=1, request=6, dialog=77),
            frame(GET | REPLY, struct.pack("<II", MISS, 0), count=1, request=6),
        ),
        {**step("released", b"", frame(RELEASED | REPLY, request=4)), "card": "lets go"},
        step(
            "get again",
            frame(GET, entry, count=1, request=7, dialog=77),
            frame(GET | REPLY, struct.pack("<II", 0, 100), count=1, request=7),
        ),
    ]


def _stream_steps() -> list[dict[str, str]]:
    """What can't be a frame ends the session, with a reason."""
    text = "a frame does not begin with the magic 0x31564b41"
    return [
        step("hello", hello(0, 0, "default"), welcome(0, 1)),
        step("no magic", bytes(range(32)), refusal(ERROR, BAD_REQUEST, text, 0)),
    ]


def mac_vectors() -> list[dict[str, str]]:
    """Proofs of a namespace's secret."""
    secret, client, server = bytes(range(100, 132)), bytes(range(32)), bytes(range(32, 64))
    return [
        {
            "label": label,
            "secret": secret.hex(),
            "client_nonce": client.hex(),
            "server_nonce": server.hex(),
            "namespace": name,
            "mac": hmac.digest(
                secret,
                label.encode() + client + server + struct.pack("<H", len(name.encode())) + name.encode(),
                "sha256",
            ).hex(),
        }
        for name in ("default", "modèle-7b")
        for label in ("akv-hello-1", "akv-welcome-1")
    ]


def protocol_vectors() -> dict[str, Any]:
    """Whole conversations over the Unix socket, each with a gateway that has just been started."""
    rng = random.Random(20260712)
    keys = [rng.randbytes(32) for _ in range(3)]
    return {
        "conversations": [
            {"name": "shared memory", "steps": _shared_steps(keys)},
            {"name": "inline", "steps": _inline_steps(keys)},
            {
                "name": "another version",
                "steps": [
                    step(
                        "hello",
                        hello(0, 0, "default", versions=(2, 3)),
                        refusal(
                            ERROR, UNSUPPORTED, "this gateway speaks version 1; the client offers 2 to 3", 1
                        ),
                    )
                ],
            },
            {"name": "regions", "steps": _region_steps()},
            {"name": "borrowing", "lent_bytes": 256 << 10, "steps": _borrowing_steps(keys)},
            {"name": "a late card", "steps": _late_steps()},
            {"name": "a broken stream", "steps": _stream_steps()},
        ],
        # The reply is an OK with the counters as JSON.
        "stats": frame(STATS, request=9).hex(),
        "macs": mac_vectors(),
    }
