"""PUT and GET: blocks of the arena by reference, other memory inline (docs/protocol.md, "PUT, GET"). No
I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from integration.client.errors import ProtocolError
from integration.client.keys import engine_key
from integration.client.memory import Block
from integration.client.operations import (
    Hasty,
    Request,
    SessionView,
    check_dialog,
    chunks,
    decode_statuses,
    expect_size,
)
from integration.client.wire import (
    GET_REPLY_ENTRY,
    REGION_INLINE,
    TRANSFER_ENTRY,
    Header,
    Opcode,
    Status,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")


class Got(NamedTuple):
    """Outcome of one entry of a GET. `length`: bytes of the stored block, also where it was TOO_SMALL."""

    status: Status
    length: int


class _Part(NamedTuple):
    """The entries of one frame, by their index in the call."""

    entries: Sequence[int]
    inline: bool


class _Transfer(Hasty[T]):
    """What PUT and GET have in common: sorting the memory into frames."""

    opcode: Opcode

    def __init__(
        self, keys: Sequence[ReadableBuffer], memory: Sequence[Block | ReadableBuffer], dialog: int
    ) -> None:
        if len(keys) != len(memory):
            raise ValueError(f"{len(keys)} keys for {len(memory)} blocks of memory")
        self._keys = [engine_key(key) for key in keys]
        self._blocks = [item if isinstance(item, Block) and item.shareable else None for item in memory]
        self._views = [_byte_view(item) for item in memory]
        self._alive = [not isinstance(item, Block) or item.valid for item in memory]
        named = [id(block) for block in self._blocks if block is not None]
        if len(set(named)) != len(named):
            raise ValueError(f"{self.opcode.name} names the same block twice: give each key its own")
        self._dialog = check_dialog(dialog)
        self._parts: list[_Part] = []

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        shared, inline = self._usable(session)
        batch = session.welcome.max_batch
        self._parts = [_Part([shared[i] for i in part], inline=False) for part in chunks(len(shared), batch)]
        self._parts += [_Part(entries, inline=True) for entries in self._inline_batches(inline, session)]
        for part in self._parts:
            yield self._request(part)

    def whole_request(self, session: SessionView) -> Request:
        """See Hasty: every entry is a block that is shared."""
        self._parts = [_Part(range(len(self._keys)), inline=False)]
        blocks = tuple(block for block in self._blocks if block is not None)
        return Request(self.opcode, len(self._keys), b"", self._dialog, blocks=blocks)

    def _usable(self, session: SessionView) -> tuple[list[int], list[int]]:
        """Entries that can be sent in this session, by reference and inline."""
        shared: list[int] = []
        inline: list[int] = []
        for index, block in enumerate(self._blocks):
            if not self._alive[index] or (block is not None and block.busy):
                continue
            if block is not None and block.belongs_to(session.lease):
                if len(self._views[index]) <= session.welcome.max_value or self.opcode == Opcode.GET:
                    shared.append(index)
                else:
                    self._too_large(index)
            elif block is None or not block.leased:
                if len(self._views[index]) <= session.welcome.max_value:
                    inline.append(index)
                else:
                    self._too_large(index)
        return shared, inline

    def _inline_batches(self, entries: list[int], session: SessionView) -> Iterator[list[int]]:
        batch: list[int] = []
        room = session.welcome.max_frame
        for index in entries:
            need = TRANSFER_ENTRY.size + len(self._views[index])
            if need > session.welcome.max_frame:
                self._too_large(index)
                continue
            if batch and (need > room or len(batch) == session.welcome.max_batch):
                yield batch
                batch, room = [], session.welcome.max_frame
            batch.append(index)
            room -= need
        if batch:
            yield batch

    def _request(self, part: _Part) -> Request:
        entries, payloads, blocks = [], [], []
        for index in part.entries:
            block = None if part.inline else self._blocks[index]
            offset, region = (0, REGION_INLINE) if block is None else block.place
            entries.append(TRANSFER_ENTRY.pack(self._keys[index], offset, len(self._views[index]), region, 0))
            if block is not None:
                blocks.append(block)
            elif self.opcode == Opcode.PUT:
                # A copy: were the caller to change its memory while the socket is full, a wrong block would
                # be stored.
                payloads.append(self._views[index])
        body = b"".join([*entries, *payloads])
        return Request(self.opcode, len(entries), body, self._dialog, blocks=tuple(blocks))

    def _too_large(self, index: int) -> None:
        raise NotImplementedError


class Put(_Transfer[list[Status]]):
    """Store blocks, best effort: OK or why not."""

    opcode = Opcode.PUT

    def __init__(
        self, keys: Sequence[ReadableBuffer], data: Sequence[Block | ReadableBuffer], dialog: int
    ) -> None:
        super().__init__(keys, data, dialog)
        self._statuses = [Status.NOT_STORED] * len(self._keys)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        entries = self._parts[index].entries
        for entry, status in zip(entries, decode_statuses(body, len(entries), "PUT"), strict=True):
            self._statuses[entry] = status

    def result(self) -> list[Status]:
        """See Operation."""
        return self._statuses

    def _too_large(self, index: int) -> None:
        self._statuses[index] = Status.TOO_LARGE


class Get(_Transfer[list[Got]]):
    """Read blocks into the given memory: where an entry is OK, its first `length` bytes are the block."""

    opcode = Opcode.GET

    def __init__(
        self, keys: Sequence[ReadableBuffer], into: Sequence[Block | WriteableBuffer], dialog: int
    ) -> None:
        super().__init__(keys, into, dialog)
        for view in self._views:
            if view.readonly:
                raise TypeError("GET needs writable memory: a destination is read-only")
        self._got = [Got(Status.MISS, 0)] * len(self._keys)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        part = self._parts[index]
        table = GET_REPLY_ENTRY.size * len(part.entries)
        if len(body) < table:
            raise ProtocolError(f"GET reply has {len(body)} bytes, expected {table} or more")
        payload = body[table:]
        outcomes = []
        for entry, (number, length) in zip(
            part.entries, GET_REPLY_ENTRY.iter_unpack(body[:table]), strict=True
        ):
            got = self._decode(entry, number, length)
            if part.inline and got.status == Status.OK:
                payload = self._copy(entry, length, payload)
            outcomes.append((entry, got))
        expect_size(payload, 0, "rest of GET")
        for entry, got in outcomes:
            self._got[entry] = got

    def still_lent(self, body: memoryview) -> frozenset[int]:
        """Where a card missed its deadline: it may still write, so the block is busy until it is freed."""
        table = body[: len(body) // GET_REPLY_ENTRY.size * GET_REPLY_ENTRY.size]
        statuses = (number for number, _ in GET_REPLY_ENTRY.iter_unpack(table))
        return frozenset(place for place, number in enumerate(statuses) if number == Status.LATE)

    def result(self) -> list[Got]:
        """See Operation."""
        return self._got

    def _decode(self, entry: int, number: int, length: int) -> Got:
        try:
            status = Status(number)
        except ValueError as error:
            raise ProtocolError(f"GET reply: {error}") from None
        if status == Status.OK and length > len(self._views[entry]):
            raise ProtocolError(f"GET reply tells {length} bytes for a block of {len(self._views[entry])}")
        return Got(Status.MISS if status == Status.LATE else status, length)

    def _copy(self, entry: int, length: int, payload: memoryview) -> memoryview:
        if len(payload) < length:
            raise ProtocolError("GET reply ends within a payload")
        self._views[entry][:length] = payload[:length]
        return payload[length:]

    def _too_large(self, index: int) -> None:
        self._got[index] = Got(Status.TOO_LARGE, 0)


def _byte_view(memory: Block | ReadableBuffer) -> memoryview:
    view = memory.view if isinstance(memory, Block) else memoryview(memory)
    if not view.c_contiguous:
        raise TypeError("memory of a block must be contiguous")
    view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
    if not 1 <= len(view) < 1 << 32:
        raise ValueError(f"a block of {len(view)} bytes can't be sent")
    return view
