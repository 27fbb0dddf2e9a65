"""Frames of the gateway's protocol (docs/protocol.md, "Header", "Status codes"): constants and codec, no
I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MAGIC = 0x31564B41
VERSION = 1
REPLY = 0x8000
ERROR_OPCODE = 0xFFFF
FEATURE_SHARED_MEMORY = 1
FEATURE_REGIONS = 2
FEATURE_BORROWING = 4
REGION_ARENA = 0
REGION_INLINE = 0xFFFF
KEY_BYTES = 32
MAX_BODY_BEFORE_HELLO = 4096
# No frame of a sane gateway is larger; keeps a malformed HELLO reply from claiming the machine's memory.
MAX_FRAME_CAP = 1 << 30
MAX_BATCH_CAP = 4096

HEADER = struct.Struct("<IIHHIQQ")
TRANSFER_ENTRY = struct.Struct("<32sQIHH")
GET_REPLY_ENTRY = struct.Struct("<II")
# Entry status, length, offset in the cache's memory.
BORROW_REPLY_ENTRY = struct.Struct("<IIQ")
EXISTS_REPLY = struct.Struct("<II")
REGISTER_BODY = struct.Struct("<QQ")
# Reply to REGISTER, and UNREGISTER: the region's number.
REGION_BODY = struct.Struct("<H6x")

_STAGING_BYTES = 64 * 1024


class Opcode(IntEnum):
    """Requests; a reply has bit 15 set."""

    HELLO = 1
    ALLOC = 2
    FREE = 3
    PUT = 4
    GET = 5
    EXISTS = 6
    DELETE = 7
    STATS = 8
    REGISTER = 9
    UNREGISTER = 10
    RELEASED = 11
    BORROW = 12
    RETURN = 13


class FrameStatus(IntEnum):
    """Status of a whole reply."""

    OK = 0
    BUSY = 1
    AUTH_REQUIRED = 2
    AUTH_FAILED = 3
    BAD_REQUEST = 4
    UNSUPPORTED = 5
    NO_MEMORY = 6
    NO_SUCH_BLOCK = 7
    SHUTTING_DOWN = 8


class Status(IntEnum):
    """Status of one entry of a batch."""

    OK = 0
    MISS = 1
    NOT_STORED = 2
    TOO_LARGE = 3
    NO_SUCH_BLOCK = 4
    TOO_SMALL = 5
    LATE = 6
    NOT_CACHED = 7


class WireError(ValueError):
    """Bytes that are no frame of the protocol."""


class Header(NamedTuple):
    """The 32 bytes before every body, without magic and length."""

    opcode: int
    status: int
    entries: int
    request_id: int
    dialog_id: int


class Frame(NamedTuple):
    """A received frame. `body` is only valid until the next one is read."""

    header: Header
    body: memoryview


def encode_frame(header: Header, body: bytes) -> bytes:
    """The frame's bytes: header (32) and body."""
    return HEADER.pack(MAGIC, len(body), *header) + body


def _decode_header(data: memoryview, max_body: int) -> tuple[Header, int]:
    magic, body_len, opcode, status, entries, request_id, dialog_id = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(f"frame begins with 0x{magic:08x}, not with 0x{MAGIC:08x}")
    if body_len > max_body:
        raise WireError(f"frame body of {body_len} bytes is above the limit of {max_body}")
    return Header(opcode, status, entries, request_id, dialog_id), body_len


class FrameReader:
    """Cuts a byte stream into frames.

    The owner receives into `buffer()` and tells how many bytes came to `received()`. Bodies that do not fit
    the staging buffer are received straight into memory of their own.
    """

    def __init__(self) -> None:
        self.max_body = MAX_BODY_BEFORE_HELLO
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._start = 0
        self._end = 0
        self._header: Header | None = None
        self._large: memoryview | None = None
        self._filled = 0

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._start:
            rest = bytes(self._staging[self._start : self._end])
            self._staging[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._staging[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """Yield the frames that `count` more bytes complete; raises `WireError` on a broken stream."""
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                yield self._finish_large()
            return
        self._end += count
        while (frame := self._next_staged()) is not None:
            yield frame

    def _finish_large(self) -> Frame:
        assert self._large is not None
        assert self._header is not None
        frame = Frame(self._header, self._large)
        self._large = self._header = None
        return frame

    def _next_staged(self) -> Frame | None:
        if self._end - self._start < HEADER.size:
            return None
        body_start = self._start + HEADER.size
        header, body_len = _decode_header(self._staging[self._start : body_start], self.max_body)
        available = self._end - body_start
        if available >= body_len:
            self._start = body_start + body_len
            return Frame(header, self._staging[body_start : self._start])
        if HEADER.size + body_len > _STAGING_BYTES:
            self._large = memoryview(bytearray(body_len))
            self._large[:available] = self._staging[body_start : self._end]
            self._header, self._filled = header, available
            self._start = self._end = 0
        return None
