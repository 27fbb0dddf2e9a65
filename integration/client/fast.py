"""The clients with the native hot path: PUT, GET, EXISTS, BORROW. All else is as in their bases."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from integration.client.aio import AsyncClient
from integration.client.config import ClientConfig
from integration.client.link import FastCall, FastSession, Link
from integration.client.loans import Borrow, Loan, Return
from integration.client.native import NativeLink
from integration.client.operations import Exists, Hasty, MatchPrefix
from integration.client.session import Call, nothing
from integration.client.sync import Client
from integration.client.transfers import Get, Put
from integration.client.view import Implementation

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")
P = ParamSpec("P")

# How the arguments of an operation are sent natively; `told`: a client of asyncio waits for the reply.
_SENDERS: dict[Callable[..., Hasty[Any]], Callable[..., FastCall | None]] = {
    Put: lambda fast, told, keys, data, dialog: fast.begin_transfer(True, keys, data, dialog, told),
    Get: lambda fast, told, keys, into, dialog: fast.begin_transfer(False, keys, into, dialog, told),
    MatchPrefix: lambda fast, told, keys, dialog: fast.begin_exists(True, keys, dialog, told),
    Exists: lambda fast, told, keys, dialog: fast.begin_exists(False, keys, dialog, told),
    Borrow: lambda fast, told, keys, dialog: fast.begin_borrow(keys, dialog, told),
    Return: lambda fast, told, loan: fast.begin_return(loan.lease, loan.offsets, told, False),
}


def _begin(
    fast: FastSession | None,
    told: bool,
    kind: Callable[..., Hasty[Any]],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> FastCall | None:
    """The call as it was sent; None where it has to take the other way, which also says what is wrong."""
    if fast is None:
        return None
    try:
        return _SENDERS[kind](fast, told, *arguments, **named)
    except (TypeError, ValueError):
        return None


def _given_up(operation: Hasty[T]) -> Hasty[T]:
    """The operation, whose caller waits no longer: what its reply brings goes back."""
    operation.withdraw()
    return operation


class NativeClient(Client):
    """As `Client`. A thread that waits for its reply reads the socket itself, without Python's lock."""

    implementation: Implementation = "native"

    def _link(self, config: ClientConfig) -> Link:
        return NativeLink(config, self._wake_sender.fileno())

    def _hot(
        self, kind: Callable[P, Hasty[T]], timeout: float | None, *arguments: P.args, **named: P.kwargs
    ) -> T:
        wait = self._seconds(timeout)
        started = time.monotonic()
        call = _begin(self._engine.fast, False, kind, arguments, named)
        if call is None:
            return self._run(kind(*arguments, **named), wait)
        return self._answer(call, lambda: kind(*arguments, **named), wait, started)

    def _answer(self, call: FastCall, make: Callable[[], Hasty[T]], wait: float, started: float) -> T:
        """Its result; the operation, which costs more than the call, is made only where it has to be."""
        try:
            result: T | None = call.result(wait)
        except BaseException:
            # A signal's handler raised. The blocks are the gateway's until its reply, which nobody will see.
            self._take_over(call, _given_up(make()), started)
            raise
        return self._take_over(call, make(), started)() if result is None else result

    def _exchange(
        self, loan: Loan, keys: Sequence[ReadableBuffer], dialog: int, timeout: float | None
    ) -> tuple[bool, Loan]:
        """See Client. RETURN and BORROW leave in one message, and so do the replies."""
        wait = self._seconds(timeout)
        started, fast = time.monotonic(), self._engine.fast
        call = None if fast is None else fast.begin_return(loan.lease, loan.offsets, False, True)
        if call is None:
            return super()._exchange(loan, keys, dialog, timeout)
        borrowed = None
        try:
            borrowed = Loan(*self._hot(Borrow, timeout, keys, dialog))
        finally:
            # Also where nothing is borrowed. The gateway answers both in their order.
            try:
                proven = self._answer(call, lambda: Return(loan), wait, started)
            except BaseException:
                if borrowed is not None:
                    self._drive(self._engine.submit, Call(Return(borrowed), nothing, started))
                raise
        return proven, borrowed

    def _take_over(self, call: FastCall, operation: Hasty[T], started: float) -> Callable[[], T]:
        ended = Call(operation, nothing, started)
        self._drive(lambda adopted: self._engine.take_over(call, adopted), ended)

        def conclude() -> T:
            result: T = self._conclude(ended)
            return result

        return conclude


class NativeAsyncClient(AsyncClient):
    """As `AsyncClient`, with frames and replies of hot calls made and read natively."""

    implementation: Implementation = "native"

    def __init__(self, config: ClientConfig) -> None:
        self._told: dict[int, asyncio.Event] = {}
        super().__init__(config)

    def _link(self, config: ClientConfig) -> Link:
        return NativeLink(config, -1)

    async def _hot(
        self, kind: Callable[P, Hasty[T]], timeout: float | None, *arguments: P.args, **named: P.kwargs
    ) -> T:
        wait = self._seconds(timeout)
        started = time.monotonic()
        call = _begin(self._engine.fast, True, kind, arguments, named)
        if call is None:
            return await self._run(kind(*arguments, **named), wait)

        def operation() -> Hasty[T]:
            return kind(*arguments, **named)

        ended = self._told[call.request_id] = asyncio.Event()
        self._rearm()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await ended.wait()
        except BaseException:
            self._engine.take_over(call, Call(_given_up(operation()), nothing, started))
            self._rearm()
            raise
        finally:
            del self._told[call.request_id]
        return self._end(call, operation, started)()

    def _end(self, call: FastCall, operation: Callable[[], Hasty[T]], started: float) -> Callable[[], T]:
        """What gives the result, or raises; the call itself is over when this returns."""
        result: T | None = call.result(0.0)
        if result is not None:
            return lambda: result
        ended = Call(operation(), nothing, started)
        self._engine.take_over(call, ended)
        self._rearm()
        return lambda: self._engine.conclude(ended)

    def _rearm(self) -> None:
        link = self._engine.link
        if isinstance(link, NativeLink) and link.stream is not None:
            for request_id in link.stream.take_told():
                if request_id in self._told:
                    self._told[request_id].set()
        super()._rearm()

    def _unwatch(self, descriptor: int) -> None:
        # The stream ends: so does every call that waits for it.
        for ended in self._told.values():
            ended.set()
        super()._unwatch(descriptor)
