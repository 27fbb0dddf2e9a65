"""Memory of this process that the cards of a gateway read and write directly (docs/client.md, "Regions")."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from integration.client.errors import ProtocolError
from integration.client.memory import Block, Lease
from integration.client.operations import Operation, Request, SessionView, expect_size
from integration.client.wire import REGION_ARENA, REGION_BODY, REGION_INLINE, REGISTER_BODY, Header, Opcode


class RegionBlock(Block):
    """Memory for one KV block in a region. It outlives sessions; one without the region sends it inline."""

    __slots__ = ("_region",)

    def __init__(self, region: Region, view: memoryview, offset: int) -> None:
        super().__init__(view, offset, None)
        self._region = region

    @property
    def shared(self) -> bool:
        """See Block; it can change with the session."""
        return self._region.registered

    @property
    def shareable(self) -> bool:
        """See Block."""
        return True

    @property
    def place(self) -> tuple[int, int]:
        """See Block."""
        return self.offset, self._region.number

    @property
    def leased(self) -> bool:
        """See Block."""
        return False

    @property
    def valid(self) -> bool:
        """False once the block was freed or its region was unregistered."""
        return not self._freed and not self._region.closed

    def belongs_to(self, lease: Lease | None) -> bool:
        """See Block."""
        return lease is not None and self._region.lease is lease

    def hold(self) -> None:
        """See Block."""
        if self._lease is not self._region.lease:
            # What a session before this one left open ended with its gateway, or the block would be busy.
            self._lease = self._region.lease
            self._transfers = 0
        super().hold()

    def drop(self) -> None:
        """See Block."""
        super().drop()
        self._region.forget(self)


class Region:
    """A part of a memfd or of a file in /dev/shm, as `Client.register` makes it.

    The client registers it again in each new session. `view` maps the whole region; `block` cuts it. The
    file must not become shorter: the gateway would end the session, and this process's own accesses kill it.
    """

    def __init__(self, descriptor: int, offset: int, length: int | None) -> None:
        size = os.fstat(descriptor).st_size
        length = size - offset if length is None else length
        if offset < 0 or offset % mmap.ALLOCATIONGRANULARITY or length < 1 or offset + length > size:
            raise ValueError(
                f"a region of {length} bytes at {offset} of a file of {size}: it must begin at a page, and "
                "lie inside"
            )
        self.offset = offset
        self.length = length
        # The number by which this session's frames name the region; 0 while it has none.
        self.number = 0
        self.lease: Lease | None = None
        self.closed = False
        self.view = memoryview(
            mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
        )
        self.descriptor = os.dup(descriptor)
        self._offsets: list[int] = []
        self._blocks: list[RegionBlock] = []

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "registered" if self.registered else "not registered"
        return f"<Region of {self.length} bytes, {state}>"

    @property
    def registered(self) -> bool:
        """The present session has it: blocks are read and written by the cards themselves."""
        return not self.closed and self.lease is not None and self.lease.valid

    @property
    def busy(self) -> bool:
        """The gateway may still read or write the memory, or a block of it; see `Block.busy`."""
        unanswered = self.lease is not None and not self.lease.gateway_gone()
        return unanswered or any(block.busy for block in self._blocks)

    def block(self, offset: int, length: int) -> Block:
        """The block of `length` bytes at `offset` of the region; the same object for the same bytes.

        Raises:
            ValueError: it is not inside, or shares bytes with another block that is not freed or is busy.
        """
        if self.closed or offset < 0 or length < 1 or offset + length > self.length:
            raise ValueError(f"no block of {length} bytes at {offset} in {self!r}")
        place = bisect_right(self._offsets, offset)
        before = self._blocks[place - 1] if place else None
        if before is not None and (before.offset, before.length, before.valid) == (offset, length, True):
            return before
        after = self._blocks[place] if place < len(self._blocks) else None
        if (before is not None and before.offset + before.length > offset) or (
            after is not None and offset + length > after.offset
        ):
            raise ValueError(f"the block of {length} bytes at {offset} shares bytes with another one")
        block = RegionBlock(self, self.view[offset : offset + length], offset)
        self._offsets.insert(place, offset)
        self._blocks.insert(place, block)
        return block

    def forget(self, block: RegionBlock) -> None:
        """`block` was freed. A busy one keeps its bytes until it is not."""
        place = bisect_right(self._offsets, block.offset) - 1
        if not block.busy and place >= 0 and self._blocks[place] is block:
            del self._offsets[place], self._blocks[place]

    def bind(self, lease: Lease, number: int) -> None:
        """The session of `lease` has it as `number`."""
        self.lease, self.number = lease, number

    def unbind(self) -> None:
        """The gateway has no more part in it."""
        self.lease, self.number = None, 0


class Register(Operation[None]):
    """Tell the session's gateway of a region; nothing where the session has none."""

    absorbs_late = True

    def __init__(self, region: Region) -> None:
        self.region = region
        self._lease: Lease | None = None

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        if session.welcome.max_regions and not self.region.closed:
            self._lease = session.lease
            body = REGISTER_BODY.pack(self.region.offset, self.region.length)
            yield Request(Opcode.REGISTER, 1, body, descriptor=self.region.descriptor)

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        expect_size(body, REGION_BODY.size, "REGISTER")
        number = int(REGION_BODY.unpack(body)[0])
        if number in {REGION_ARENA, REGION_INLINE}:
            raise ProtocolError(f"REGISTER answered region {number}")
        assert self._lease is not None
        self.region.bind(self._lease, number)

    def result(self) -> None:
        """See Operation."""

    def withdraw(self) -> None:
        """See Operation: nobody has the region."""
        super().withdraw()
        self.region.closed = True

    def follow_up(self) -> Operation[Any] | None:
        """A region that was unregistered while the gateway was being told of it goes as well."""
        return Unregister(self.region) if self.region.closed and self.region.number else None


class Unregister(Operation[bool]):
    """End a region; true once the gateway has let go of its memory."""

    absorbs_late = True

    def __init__(self, region: Region) -> None:
        self._region = region
        region.closed = True

    def requests(self, session: SessionView) -> Iterator[Request]:
        """See Operation."""
        if self._region.lease is session.lease:
            yield Request(Opcode.UNREGISTER, 1, REGION_BODY.pack(self._region.number))

    def absorb(self, index: int, header: Header, body: memoryview) -> None:
        """See Operation."""
        expect_size(body, 0, "UNREGISTER")
        self._region.unbind()

    def result(self) -> bool:
        """See Operation."""
        return not self._region.busy
