"""What a call is made of: frames to send, replies to take in, a result that is always there. No I/O."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from integration.client.errors import ProtocolError
from integration.client.keys import engine_key
from integration.client.memory import Arena, Block, Lease, private_block
from integration.client.wire import EXISTS_REPLY, KEY_BYTES, Header, Opcode, Status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from integration.client.handshake import Welcome

T = TypeVar("T")
_PREFIX_ONLY = 1


class Request(NamedTuple):
    """One frame of a call, without its id. `blocks` belong to the gateway until the reply."""

    opcode: Opcode
    entries: int
    body: bytes
    dialog: int = 0
    status: int = 0
    # Passed with the frame's first byte; the operation keeps it open.
    descriptor: int = -1
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionView:
    """What an operation has to know of the session it runs in."""

    welcome: Welcome
    lease: Lease
    arena: Arena | None
    # Of the read cache, to be read; None where nothing is lent.
    cache: memoryview | None = None


class Operation(ABC, Generic[T]):
    """One call. `result()` is right at every moment: what no reply confirmed is a miss or not stored."""

    # Set when the caller no longer waits: from then on replies touch neither its memory nor the result.
    abandoned = False
    # Replies are wanted also after that.
    absorbs_late = False
    # It only gives back what the gateway lent. Its frames need no credit and leave whatever else waits, so
    # that nothing stays lent while the session lives.
    gives_back = False

    @abstractmethod
    def requests(self, session: SessionView) -> Iterator[Request]:
        """Make the frames to send, each within the session's limits, one by one as there is room for them."""

    @abstractmethod
    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """Take the OK reply to request `index`; raises ProtocolError where it can't be an answer to it."""

    def still_lent(self, body: memoryview) -> frozenset[int]:
        """Blocks of the answered request, by their place in it, that stay the gateway's after the reply."""
        return frozenset()

    @abstractmethod
    def result(self) -> T:
        """The call's answer as far as it is known."""

    def withdraw(self) -> None:
        """The caller sees no result: it was interrupted, or gets an error."""
        self.abandoned = True

    def follow_up(self) -> Operation[Any] | None:
        """What must be sent once all replies are there, because the caller will not use what they brought.

        May be asked again where the caller went away afterwards.
        """
        return None


def check_dialog(dialog: int) -> int:
    """`dialog` as an unsigned 64-bit number, or ValueError."""
    if not 0 <= dialog < 1 << 64:
        raise ValueError(f"dialog {dialog} is no unsigned 64-bit number")
    return dialog


def chunks(size: int, at_most: int) -> Iterator[range]:
    """Index ranges that cover `size` entries, each of at most `at_most`."""
    for start in range(0, size, at_most):
        yield range(start, min(start + at_most, size))


def expect_size(body: memoryview, size: int, what: str) -> None:
    """Raise ProtocolError unless the body of a reply has exactly `size` bytes."""
    if len(body) != size:
        raise ProtocolError(f"{what} reply has {len(body)} bytes, expected {size}")


def decode_statuses(body: memoryview, count: int, what: str) -> list[Status]:
    """The u32 entry statuses of a reply; raises ProtocolError on another size or an unknown status."""
    expect_size(body, 4 * count, what)
    try:
        return [Status(int.from_bytes(body[4 * i : 4 * i + 4], "little")) for i in range(count)]
    except ValueError as error:
        raise ProtocolError(f"{what} reply: {error}") from None


class Hasty(Operation[T]):
    """An operation that can be sent as one frame by other means than `requests`."""

    @abstractmethod
    def whole_request(self, session: SessionView) -> Request:
        """The request that was sent, without its body: everything in one frame."""


class Alloc(Operation[list[Block]]):
    """Lease `count` blocks of `length` bytes: all, or none. Private memory where the session has no arena."""

    absorbs_late = True

    def __init__(self, count: int, length: int) -> None:
        if count < 0 or not 1 <= length < 1 << 32:
            raise ValueError(f"can't lease {count} blocks of {length} bytes")
        self._count = count
        self._length = length
        self._blocks: list[Block] = []
        self._arena: Arena | None = None

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        self._arena = session.arena
        if self._arena is None:
            self._blocks = [private_block(self._length) for _ in range(self._count)]
            return
        entry = self._length.to_bytes(4, "little")
        for part in chunks(self._count, session.welcome.max_batch):
            yield Request(Opcode.ALLOC, len(part), entry * len(part))

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        assert self._arena is not None
        expect_size(body, 8 * header.entries, "ALLOC")
        if len(self._blocks) + header.entries > self._count:
            raise ProtocolError(f"ALLOC reply leases {header.entries} blocks, more than were asked for")
        for start in range(0, len(body), 8):
            offset = int.from_bytes(body[start : start + 8], "little")
            self._blocks.append(self._arena.block(offset, self._length))

    def result(self) -> list[Block]:
        """See Operation."""
        return self._blocks if len(self._blocks) == self._count else []

    def follow_up(self) -> Operation[Any] | None:
        """Give back what the caller will never see: a part of what it wanted, or all after its deadline."""
        unseen = self.abandoned or len(self._blocks) < self._count
        return Free(self._blocks) if unseen and self._blocks else None


class Free(Operation[None]):
    """Give blocks back. Blocks of a lost session, or freed before, need nothing."""

    gives_back = True

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = list({id(block): block for block in blocks if block.valid}.values())
        for block in self._blocks:
            block.drop()

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        if session.arena is None:
            return
        mine = [
            block
            for block in self._blocks
            if block.leased and block.belongs_to(session.lease) and session.arena.forget(block)
        ]
        offsets = b"".join(block.offset.to_bytes(8, "little") for block in mine)
        for part in chunks(len(mine), session.welcome.max_batch):
            yield Request(Opcode.FREE, len(part), offsets[8 * part.start : 8 * part.stop])

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        expect_size(body, 0, "FREE")

    def result(self) -> None:
        """See Operation."""


class _KeyedOperation(Hasty[T]):
    """Keys alone, in batches that are sent side by side."""

    opcode: Opcode
    status = 0

    def __init__(self, keys: Sequence[ReadableBuffer], dialog: int) -> None:
        self._keys = [engine_key(key) for key in keys]
        self._dialog = check_dialog(dialog)
        self._parts: list[range] = []

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        self._parts = list(chunks(len(self._keys), session.welcome.max_batch))
        joined = b"".join(self._keys)
        for part in self._parts:
            body = joined[KEY_BYTES * part.start : KEY_BYTES * part.stop]
            yield Request(self.opcode, len(part), body, self._dialog, self.status)

    def whole_request(self, session: SessionView) -> Request:
        """See Hasty."""
        self._parts = [range(len(self._keys))]
        return Request(self.opcode, len(self._keys), b"", self._dialog, self.status)


class Exists(_KeyedOperation[list[bool]]):
    """Which keys are present."""

    opcode = Opcode.EXISTS

    def __init__(self, keys: Sequence[ReadableBuffer], dialog: int) -> None:
        super().__init__(keys, dialog)
        self._present = [False] * len(self._keys)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        part = self._parts[index]
        _decode_prefix(body, len(part))
        bits = body[EXISTS_REPLY.size :]
        expect_size(bits, (len(part) + 7) // 8, "EXISTS bitmap")
        for i, key in enumerate(part):
            self._present[key] = bool(bits[i // 8] >> (i % 8) & 1)

    def result(self) -> list[bool]:
        """See Operation."""
        return self._present


class MatchPrefix(_KeyedOperation[int]):
    """How many keys from the first on are present without a gap."""

    opcode = Opcode.EXISTS
    status = _PREFIX_ONLY

    def __init__(self, keys: Sequence[ReadableBuffer], dialog: int) -> None:
        super().__init__(keys, dialog)
        self._runs: dict[int, int] = {}

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        self._runs[index] = _decode_prefix(body, len(self._parts[index]))

    def result(self) -> int:
        """See Operation."""
        total = 0
        for index, part in enumerate(self._parts):
            run = self._runs.get(index, 0)
            total += run
            if run < len(part):
                break
        return total


def _decode_prefix(body: memoryview, count: int) -> int:
    if len(body) < EXISTS_REPLY.size:
        raise ProtocolError(f"EXISTS reply has {len(body)} bytes, expected {EXISTS_REPLY.size} or more")
    prefix = int(EXISTS_REPLY.unpack_from(body)[0])
    if prefix > count:
        raise ProtocolError(f"EXISTS reply tells a prefix of {prefix} of {count} keys")
    return prefix


class Delete(_KeyedOperation[list[bool]]):
    """Remove keys; True where the key is certainly gone."""

    opcode = Opcode.DELETE

    def __init__(self, keys: Sequence[ReadableBuffer], dialog: int) -> None:
        super().__init__(keys, dialog)
        self._gone = [False] * len(self._keys)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        part = self._parts[index]
        for key, status in zip(part, decode_statuses(body, len(part), "DELETE"), strict=True):
            self._gone[key] = status in {Status.OK, Status.MISS}

    def result(self) -> list[bool]:
        """See Operation."""
        return self._gone


class Stats(Operation[dict[str, Any]]):
    """The gateway's counters; empty when they are not known."""

    def __init__(self) -> None:
        self._counters: dict[str, Any] = {}

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        yield Request(Opcode.STATS, 0, b"")

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        try:
            counters = json.loads(bytes(body))
        except ValueError as error:
            raise ProtocolError(f"STATS reply is no JSON: {error}") from error
        if not isinstance(counters, dict):
            raise ProtocolError("STATS reply is no JSON object")
        self._counters = counters

    def result(self) -> dict[str, Any]:
        """See Operation."""
        return self._counters
