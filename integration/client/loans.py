"""Blocks that are read where the gateway's read cache has them: BORROW and RETURN. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from integration.client.errors import ClientError, LoanLostError, ProtocolError
from integration.client.keys import engine_key
from integration.client.memory import Lease
from integration.client.operations import (
    Hasty,
    Operation,
    Request,
    SessionView,
    check_dialog,
    chunks,
    expect_size,
)
from integration.client.wire import BORROW_REPLY_ENTRY, KEY_BYTES, Header, Opcode, Status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OFFSET_BYTES = 8


class Loan(NamedTuple):
    """What BORROW brought: a view for each key or None, and the offsets (u64) by which they go back."""

    views: list[memoryview | None]
    offsets: bytes
    lease: Lease | None


class Views(Sequence[memoryview | None]):
    """What `borrow` gives: for each key a read-only view of its block, of its length, or None.

    A view that is used after its block was returned, or its session was lost, does no harm to this process,
    but its bytes may be another block's by then.
    """

    def __init__(self, loan: Loan) -> None:
        self._loan = loan
        self._returned = not loan.offsets
        self._proven = self._returned

    def __len__(self) -> int:
        return len(self._loan.views)

    @overload
    def __getitem__(self, index: int) -> memoryview | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[memoryview | None]: ...
    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview | None] | None:
        return self._loan.views[index]

    @property
    def valid(self) -> bool:
        """Nothing is known that ends the loan; only `release` proves that it lasted."""
        lease = self._loan.lease
        return not self._loan.offsets or (not self._returned and lease is not None and lease.valid)

    def _begin_release(self) -> bool:
        """True once: the blocks go back. Views that nothing else looks through can't be used any more."""
        if self._returned:
            return False
        self._returned = True
        _release_all(self._loan.views)
        return True

    @staticmethod
    def _judge(proven: bool, failure: ClientError | None, error: BaseException | None) -> None:
        """At the end of a `with` block, which `error` ended if one did: that one is raised on, as it was.

        Raises:
            LoanLostError: the block ended well, and what it read may not be its blocks.
        """
        if error is not None:
            if failure is not None:
                error.add_note(f"then the borrowed blocks could not be given back: {failure}")
        elif not proven:
            raise lost() from failure


def lost() -> LoanLostError:
    """What was read in place is not known to be the blocks."""
    return LoanLostError(
        "the session was lost while blocks were read in place: what was read may be other blocks; drop it"
    )


def _release_all(views: list[memoryview | None]) -> None:
    left = iter(views)
    while True:
        try:
            for view in left:
                if view is not None:
                    view.release()
        except BufferError:
            continue  # an array lies over this one: it stays
        return


class Borrow(Hasty[Loan]):
    """Ask for blocks in place. What the caller will not see goes back at once."""

    absorbs_late = True

    def __init__(self, keys: Sequence[ReadableBuffer], dialog: int) -> None:
        self._keys = [engine_key(key) for key in keys]
        self._dialog = check_dialog(dialog)
        self._parts: list[range] = []
        self._views: list[memoryview | None] = [None] * len(self._keys)
        self._offsets: list[bytes] = []
        self._session: SessionView | None = None

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        self._session = session
        if session.cache is None:
            return
        self._parts = list(chunks(len(self._keys), session.welcome.max_batch))
        joined = b"".join(self._keys)
        for part in self._parts:
            body = joined[KEY_BYTES * part.start : KEY_BYTES * part.stop]
            yield Request(Opcode.BORROW, len(part), body, self._dialog)

    def whole_request(self, session: SessionView) -> Request:
        """See Hasty."""
        self._session, self._parts = session, [range(len(self._keys))]
        return Request(Opcode.BORROW, len(self._keys), b"", self._dialog)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        part = self._parts[index]
        expect_size(body, BORROW_REPLY_ENTRY.size * len(part), "BORROW")
        found = [
            (key, self._decode(*entry), entry[2])
            for key, entry in zip(part, BORROW_REPLY_ENTRY.iter_unpack(body), strict=True)
        ]
        for key, view, offset in found:
            if view is not None:
                self._views[key] = view
                self._offsets.append(offset.to_bytes(_OFFSET_BYTES, "little"))

    def result(self) -> Loan:
        """See Operation."""
        lease = self._session.lease if self._session is not None else None
        if self.abandoned or lease is None or not lease.valid:
            return Loan([None] * len(self._keys), b"", lease)
        return Loan(self._views, b"".join(self._offsets), lease)

    def follow_up(self) -> Operation[Any] | None:
        """What nobody will see goes back, once: a block may be lent to other calls too."""
        if not self.abandoned or self._session is None or not self._offsets:
            return None
        offsets, self._offsets = self._offsets, []
        return Return(Loan([], b"".join(offsets), self._session.lease))

    def _decode(self, status: int, length: int, offset: int) -> memoryview | None:
        if status == Status.NOT_CACHED:
            return None
        cache = self._session.cache if self._session is not None else None
        if status != Status.OK or cache is None or length < 1 or offset + length > len(cache):
            raise ProtocolError(f"BORROW answered status {status}, {length} bytes at {offset}")
        return cache[offset : offset + length]


class Return(Hasty[bool]):
    """Give borrowed blocks back; true where the gateway confirms that they were lent until then."""

    absorbs_late = True
    gives_back = True

    def __init__(self, loan: Loan) -> None:
        self._offsets = loan.offsets
        self._lease = loan.lease
        self._open = len(loan.offsets)

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        if self._lease is not session.lease:
            return
        for part in chunks(len(self._offsets) // _OFFSET_BYTES, session.welcome.max_batch):
            body = self._offsets[_OFFSET_BYTES * part.start : _OFFSET_BYTES * part.stop]
            yield Request(Opcode.RETURN, len(part), body)

    def whole_request(self, session: SessionView) -> Request:
        """See Hasty."""
        return Request(Opcode.RETURN, len(self._offsets) // _OFFSET_BYTES, self._offsets)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        expect_size(body, 0, "RETURN")
        self._open -= _OFFSET_BYTES * header.entries

    def result(self) -> bool:
        """See Operation."""
        return self._open == 0
