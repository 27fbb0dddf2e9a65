"""The client for asyncio: the same engine, driven by the running loop. For one loop, not thread-safe."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from integration.client.config import ClientConfig
from integration.client.engine import Engine
from integration.client.errors import ClientError
from integration.client.link import Link
from integration.client.loans import Borrow, Loan, Return, Views, lost
from integration.client.memory import Block
from integration.client.operations import Alloc, Delete, Exists, Free, Hasty, MatchPrefix, Operation, Stats
from integration.client.regions import Region, Register, Unregister
from integration.client.session import Call
from integration.client.transfers import Get, Got, Put
from integration.client.view import ClientView, Implementation, find_native
from integration.client.wire import Status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")
P = ParamSpec("P")


class AsyncClient(ClientView):
    """As `Client`, for the loop that runs when it is made. A cancelled call counts as given up."""

    def __init__(self, config: ClientConfig) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._engine = Engine(config, self._changed.set, self._unwatch, self._link)
        self._reading = -1
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._engine.start()
        self._rearm()

    @staticmethod
    async def connect(
        *, wait: float = 2.0, implementation: Implementation | None = None, **settings: Any
    ) -> AsyncClient:
        """Make a client and wait up to `wait` seconds for its first session; see `connect`."""
        config = ClientConfig(**settings)
        client: AsyncClient = async_class(implementation)(config)
        if not await client.wait_connected(wait) and config.strict:
            error = client._no_session(config)
            await client.close()
            raise error
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session: blocks become invalid, waiting calls end. May be called twice."""
        self._engine.close()
        self._changed.set()
        self._rearm()

    async def wait_connected(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a session; False at once where the secret is refused."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (self._engine.ready or self._engine.hopeless):
                    self._changed.clear()
                    await self._changed.wait()
        return self._engine.ready

    async def alloc(self, count: int, length: int, *, timeout: float | None = None) -> list[Block]:
        """Lease `count` blocks of `length` bytes: all, or an empty list without memory or gateway."""
        return await self._run(Alloc(count, length), timeout)

    async def free(self, blocks: Iterable[Block], *, timeout: float | None = None) -> None:
        """Give blocks back; blocks of a lost session need it not."""
        wait = self._seconds(timeout)
        await self._run(Free(blocks), wait)

    async def register(
        self, descriptor: int, *, offset: int = 0, length: int | None = None, timeout: float | None = None
    ) -> Region:
        """Let cards read and write a part of a memfd or of a file in /dev/shm themselves; see docs/client.md.

        The descriptor may be closed afterwards. Where the session can't have it, its blocks are sent inline.
        """
        region = Region(descriptor, offset, length)
        await self._run(Register(region), timeout)
        return region

    async def unregister(self, region: Region, *, timeout: float | None = None) -> bool:
        """End a region, also in sessions to come; True once the gateway has let go of its memory."""
        self._engine.forget(region)
        return await self._run(Unregister(region), timeout)

    async def put(
        self,
        keys: Sequence[ReadableBuffer],
        data: Sequence[Block | ReadableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Status]:
        """Store one block for each key, best effort: OK, or why not. Memory but blocks is sent inline."""
        return await self._hot(Put, timeout, keys, data, dialog)

    async def get(
        self,
        keys: Sequence[ReadableBuffer],
        into: Sequence[Block | WriteableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Got]:
        """Read one block for each key into the memory given for it."""
        return await self._hot(Get, timeout, keys, into, dialog)

    async def borrow(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> AsyncBorrowed:
        """As Client.borrow: `async with await client.borrow(keys, dialog) as views`."""
        return AsyncBorrowed(self, Loan(*await self._hot(Borrow, timeout, keys, dialog)))

    async def match_prefix(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> int:
        """How many keys from the first on are present without a gap."""
        return await self._hot(MatchPrefix, timeout, keys, dialog)

    async def exists(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> list[bool]:
        """Which keys are present."""
        return await self._hot(Exists, timeout, keys, dialog)

    async def delete(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> list[bool]:
        """Remove keys; True where a key is certainly gone."""
        return await self._run(Delete(keys, dialog), timeout)

    async def stats(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The gateway's counters; empty while it is away."""
        return await self._run(Stats(), timeout)

    async def _hot(
        self, kind: Callable[P, Hasty[T]], timeout: float | None, *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Run what callers wait for most: a subclass may have a faster way."""
        return await self._run(kind(*arguments, **named), timeout)

    async def _run(self, operation: Operation[T], timeout: float | None) -> T:
        wait = self._seconds(timeout)
        ended = asyncio.Event()
        call = Call(operation, ended.set, time.monotonic())
        try:
            self._engine.submit(call)
            self._rearm()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await ended.wait()
            self._engine.abandon(call)
        except BaseException:
            # Cancelled, perhaps when the reply was there already: nobody sees what it brought.
            self._engine.withdraw(call)
            raise
        finally:
            self._rearm()
        result: T = self._engine.conclude(call)
        return result

    def _link(self, config: ClientConfig) -> Link:
        return Link(config)

    def _on_readable(self) -> None:
        self._drive(lambda: self._engine.handle_io(readable=True, writable=False))

    def _on_writable(self) -> None:
        self._drive(lambda: self._engine.handle_io(readable=False, writable=True))

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        self._drive(self._engine.handle_timers)

    def _drive(self, step: Callable[[], None]) -> None:
        """One step of the engine that nobody waits for: whatever it raises must not be the last one."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - told by the engine's log
            self._engine.fail(error)
        self._rearm()

    def _unwatch(self, descriptor: int) -> None:
        if self._writing:
            self._loop.remove_writer(descriptor)
        if self._reading >= 0:
            self._loop.remove_reader(descriptor)
        self._reading, self._writing = -1, False

    def _rearm(self) -> None:
        """Watch what the engine wants watched now."""
        descriptor, wants_write = self._engine.descriptor, self._engine.wants_write
        if descriptor != self._reading and descriptor >= 0:
            self._loop.add_reader(descriptor, self._on_readable)
            self._reading = descriptor
        if descriptor >= 0 and wants_write != self._writing:
            if wants_write:
                self._loop.add_writer(descriptor, self._on_writable)
            else:
                self._loop.remove_writer(descriptor)
            self._writing = wants_write
        self._rearm_timer(self._engine.next_timer())

    def _rearm_timer(self, due: float | None) -> None:
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = (
            None if due is None else self._loop.call_later(max(due - time.monotonic(), 0), self._on_timer)
        )


class AsyncBorrowed(Views):
    """See Views; leaving an `async with` block releases them. LoanLostError: they were lost before."""

    def __init__(self, client: AsyncClient, loan: Loan) -> None:
        super().__init__(loan)
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        proven, failure = False, None
        try:
            proven = await self.release()
        except ClientError as strict:
            failure = strict
        self._judge(proven, failure, error)

    async def release(self, *, timeout: float | None = None) -> bool:
        """Give the blocks back. True: what was read until now was their content; else drop it."""
        wait = self._client._seconds(timeout)
        if self._begin_release():
            self._proven = await self._client._hot(Return, wait, self._loan)
        return self._proven

    async def exchange(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> AsyncBorrowed:
        """As Borrowed.exchange, in two round trips."""
        try:
            proven = await self.release(timeout=timeout)
        except ClientError as strict:
            raise lost() from strict
        if not proven:
            raise lost()
        return await self._client.borrow(keys, dialog, timeout=timeout)


def async_class(implementation: Implementation | None) -> type[AsyncClient]:
    """The class of clients that `implementation` names; None is the fastest that is there. See `connect`."""
    if (native := find_native(implementation)) is not None:
        made: type[AsyncClient] = native.NativeAsyncClient
        return made
    return AsyncClient
