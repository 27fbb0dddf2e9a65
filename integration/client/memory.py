"""A session's shared memory and the blocks in it."""

from __future__ import annotations

import fcntl
import mmap
import os

from integration.client.channel import GatewayProcess
from integration.client.errors import ProtocolError
from integration.client.wire import REGION_ARENA


class Lease:
    """What the blocks of one session share: whether it lives, and which process may touch their memory."""

    __slots__ = ("gateway", "valid")

    def __init__(self, gateway: GatewayProcess | None) -> None:
        self.valid = True
        self.gateway = gateway

    def gateway_gone(self) -> bool:
        """The process at the other end is proven to have ended; a closed socket proves nothing."""
        return self.gateway is not None and self.gateway.ended()


class Block:
    """Memory for one KV block: leased shared memory, or private memory of a client without an arena.

    `view` is a writable memoryview of `length` bytes; `numpy.frombuffer(block.view, dtype)` and
    `torch.frombuffer(block.view, dtype=...)` use it in place. Bytes of a successful GET stay right in the
    view also when the session is lost afterwards.
    """

    __slots__ = ("_freed", "_lease", "_transfers", "length", "offset", "view")

    def __init__(self, view: memoryview, offset: int, lease: Lease | None) -> None:
        self.view = view
        self.length = len(view)
        self.offset = offset
        self._lease = lease
        self._transfers = 0
        self._freed = False

    def __repr__(self) -> str:
        state = "busy" if self.busy else "valid" if self.valid else "invalid"
        return f"<Block offset={self.offset} length={self.length} {state}>"

    @property
    def shared(self) -> bool:
        """The gateway reads and writes the memory itself."""
        return self._lease is not None

    @property
    def shareable(self) -> bool:
        """There can be sessions in which it is shared."""
        return self._lease is not None

    @property
    def place(self) -> tuple[int, int]:
        """Offset and region by which frames of the present session name it."""
        return self.offset, REGION_ARENA

    @property
    def leased(self) -> bool:
        """Memory of the session's arena, which the gateway is to be told of when it is given back."""
        return self._lease is not None

    @property
    def valid(self) -> bool:
        """False once the block was freed or its session was lost: PUT and GET then answer "not stored" and
        "miss"."""
        return not self._freed and (self._lease is None or self._lease.valid)

    @property
    def busy(self) -> bool:
        """The gateway may still read or write the memory: a transfer is under way or was never answered.

        A call that missed its deadline leaves its blocks busy until the reply comes or the gateway's process
        has ended. Do not reuse the memory of a busy block.
        """
        return self._transfers > 0 and self._lease is not None and not self._lease.gateway_gone()

    def belongs_to(self, lease: Lease | None) -> bool:
        """The block was leased in the session of `lease`."""
        return self._lease is lease

    def hold(self) -> None:
        """A transfer names the block."""
        self._transfers += 1

    def release(self) -> None:
        """The transfer was answered."""
        self._transfers -= 1

    def drop(self) -> None:
        """The block was given back."""
        self._freed = True


def private_block(length: int) -> Block:
    """A block in this process's own memory, sent and received inline."""
    return Block(memoryview(bytearray(length)), 0, None)


class Arena:
    """The session's memory, mapped read-write from the descriptor that came with HELLO.

    Raises:
        ProtocolError: the descriptor is smaller than promised or may shrink (reading it could then kill us).
    """

    def __init__(self, descriptor: int, size: int, align: int, lease: Lease) -> None:
        _check_descriptor(descriptor, size)
        self._view = memoryview(
            mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        )
        self._align = align
        self._lease = lease
        self._live: dict[int, Block] = {}

    def block(self, offset: int, length: int) -> Block:
        """The leased block at `offset`; raises ProtocolError where the gateway's answer can't be true."""
        if offset % self._align or offset + length > len(self._view):
            raise ProtocolError(
                f"ALLOC answered offset {offset} for {length} bytes of an arena of {len(self._view)}"
            )
        if offset in self._live:
            raise ProtocolError(f"ALLOC answered offset {offset}, which is leased already")
        block = Block(self._view[offset : offset + length], offset, self._lease)
        self._live[offset] = block
        return block

    def forget(self, block: Block) -> bool:
        """`block` is being given back, and its offset may be leased again; false where it was before."""
        block.drop()
        if self._live.get(block.offset) is not block:
            return False
        del self._live[block.offset]
        return True


def map_cache(descriptor: int, size: int) -> memoryview:
    """The memory of the gateway's read cache, to be read; it stays mapped as long as views of it exist."""
    _check_descriptor(descriptor, size)
    return memoryview(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ))


def _check_descriptor(descriptor: int, size: int) -> None:
    actual = os.fstat(descriptor).st_size
    if actual < size:
        raise ProtocolError(f"shared memory has {actual} bytes, the gateway promised {size}")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("the descriptor that came with HELLO is no memfd") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ProtocolError("shared memory is not sealed against shrinking")
