"""The clients with the native hot path: PUT and GET of blocks, EXISTS. All else is as in their bases."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from integration.client.aio import AsyncClient
from integration.client.config import ClientConfig
from integration.client.link import FastCall, FastSession, Link
from integration.client.memory import Block
from integration.client.native import NativeLink
from integration.client.operations import Exists, Hasty, MatchPrefix
from integration.client.sync import Client, check_timeout
from integration.client.transfers import Get, Got, Put
from integration.client.view import Implementation
from integration.client.wire import Status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")
Begin = Callable[[FastSession], FastCall | None]


def _begin(fast: FastSession | None, begin: Begin) -> FastCall | None:
    """The call as it was sent; None where it has to take the other way, which also says what is wrong."""
    if fast is None:
        return None
    try:
        return begin(fast)
    except (TypeError, ValueError):
        return None


class NativeClient(Client):
    """As `Client`. A thread that waits for its reply reads the socket itself, without Python's lock."""

    implementation: Implementation = "native"

    def put(
        self,
        keys: Sequence[ReadableBuffer],
        data: Sequence[Block | ReadableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Status]:
        """See Client."""
        return self._hasten(
            lambda: Put(keys, data, dialog),
            lambda fast: fast.begin_transfer(True, keys, data, dialog, False),
            timeout,
        )

    def get(
        self,
        keys: Sequence[ReadableBuffer],
        into: Sequence[Block | WriteableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Got]:
        """See Client."""
        return self._hasten(
            lambda: Get(keys, into, dialog),
            lambda fast: fast.begin_transfer(False, keys, into, dialog, False),
            timeout,
        )

    def match_prefix(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> int:
        """See Client."""
        return self._hasten(
            lambda: MatchPrefix(keys, dialog),
            lambda fast: fast.begin_exists(True, keys, dialog, False),
            timeout,
        )

    def exists(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> list[bool]:
        """See Client."""
        return self._hasten(
            lambda: Exists(keys, dialog), lambda fast: fast.begin_exists(False, keys, dialog, False), timeout
        )

    def _link(self, config: ClientConfig) -> Link:
        return NativeLink(config, self._wake_sender.fileno())

    def _hasten(self, operation: Callable[[], Hasty[T]], begin: Begin, timeout: float | None) -> T:
        wait = check_timeout(self._engine.config.timeout if timeout is None else timeout)
        started = time.monotonic()
        call = _begin(self._engine.fast, begin)
        if call is None:
            return self._run(operation(), wait)
        try:
            result: T | None = call.result(wait)
        except BaseException:
            # A signal's handler raised. The blocks are the gateway's until its reply.
            self._take_over(call, operation(), started)
            raise
        return self._take_over(call, operation(), started)() if result is None else result

    def _take_over(self, call: FastCall, operation: Hasty[T], started: float) -> Callable[[], T]:
        with self._lock:
            ended = self._engine.take_over(call, operation, started)
            self._wake_if_changed()

        def conclude() -> T:
            with self._lock:
                result: T = self._engine.conclude(ended)
            return result

        return conclude


class NativeAsyncClient(AsyncClient):
    """As `AsyncClient`, with frames and replies of hot calls made and read natively."""

    implementation: Implementation = "native"

    def __init__(self, config: ClientConfig) -> None:
        self._told: dict[int, asyncio.Event] = {}
        super().__init__(config)

    async def put(
        self,
        keys: Sequence[ReadableBuffer],
        data: Sequence[Block | ReadableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Status]:
        """See AsyncClient."""
        return await self._hasten(
            lambda: Put(keys, data, dialog),
            lambda fast: fast.begin_transfer(True, keys, data, dialog, True),
            timeout,
        )

    async def get(
        self,
        keys: Sequence[ReadableBuffer],
        into: Sequence[Block | WriteableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Got]:
        """See AsyncClient."""
        return await self._hasten(
            lambda: Get(keys, into, dialog),
            lambda fast: fast.begin_transfer(False, keys, into, dialog, True),
            timeout,
        )

    async def match_prefix(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> int:
        """See AsyncClient."""
        return await self._hasten(
            lambda: MatchPrefix(keys, dialog),
            lambda fast: fast.begin_exists(True, keys, dialog, True),
            timeout,
        )

    async def exists(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> list[bool]:
        """See AsyncClient."""
        return await self._hasten(
            lambda: Exists(keys, dialog), lambda fast: fast.begin_exists(False, keys, dialog, True), timeout
        )

    def _link(self, config: ClientConfig) -> Link:
        return NativeLink(config, -1)

    async def _hasten(self, operation: Callable[[], Hasty[T]], begin: Begin, timeout: float | None) -> T:
        wait = check_timeout(self._engine.config.timeout if timeout is None else timeout)
        started = time.monotonic()
        call = _begin(self._engine.fast, begin)
        if call is None:
            return await self._run(operation(), wait)
        ended = self._told[call.request_id] = asyncio.Event()
        self._rearm()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await ended.wait()
        except asyncio.CancelledError:
            self._end(call, operation, started)
            raise
        finally:
            del self._told[call.request_id]
        return self._end(call, operation, started)()

    def _end(self, call: FastCall, operation: Callable[[], Hasty[T]], started: float) -> Callable[[], T]:
        """What gives the result, or raises; the call itself is over when this returns."""
        result: T | None = call.result(0.0)
        if result is not None:
            return lambda: result
        ended = self._engine.take_over(call, operation(), started)
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
