"""One connection to a gateway: its socket, its frames in and out, its HELLO."""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from integration.client.channel import gateway_process, open_socket, receive, send_some
from integration.client.config import ClientConfig
from integration.client.errors import ProtocolError
from integration.client.forks import Home
from integration.client.handshake import NONCE_BYTES, Handshake, Welcome
from integration.client.memory import Arena, Lease, map_cache
from integration.client.operations import SessionView
from integration.client.session import Credits, Session
from integration.client.wire import Frame, FrameReader, WireError

# Frames taken from the socket in one turn: other work of an event loop waits no longer than that.
_READS_PER_TURN = 16
_PARTS_PER_SEND = 16


class FastCall(Protocol):
    """A request that was sent past the engine."""

    @property
    def request_id(self) -> int:
        """As in its frame."""

    @property
    def answered(self) -> bool:
        """Its result was given: it holds no blocks any more."""

    def disown(self) -> None:
        """Its reply, come or not, is to be read by the link."""

    def result(self, seconds: float, /) -> Any:
        """Wait for the plain answer; None where it did not come."""


class FastSession(Protocol):
    """A session for calls that go past the engine. Methods answer None where the engine has to do it."""

    def begin_transfer(
        self, put: bool, keys: Sequence[Any], blocks: Sequence[Any], dialog: int, told: bool, /
    ) -> FastCall | None:
        """Send a PUT or a GET of whole blocks of this session's memory."""

    def begin_exists(self, prefix: bool, keys: Sequence[Any], dialog: int, told: bool, /) -> FastCall | None:
        """Send an EXISTS."""

    def begin_borrow(self, keys: Sequence[Any], dialog: int, told: bool, /) -> FastCall | None:
        """Send a BORROW; its result is a Loan's fields."""

    def begin_return(self, lease: Any, offsets: bytes, told: bool, with_next: bool, /) -> FastCall | None:
        """Send a RETURN of blocks borrowed in the session of `lease`: now, or with the next call."""


class Link:
    """Begins to connect when made; raises OSError where that failed at once.

    The owner calls `on_writable` and `read` when the socket is ready. Every method may raise OSError: the
    connection is then of no use any more.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._socket = open_socket(config)
        self._reader = FrameReader()
        # With each part the descriptor that its first byte carries, or -1.
        self._outbox: deque[tuple[memoryview, int]] = deque()
        self._handshake = Handshake(config, secrets.token_bytes(NONCE_BYTES))
        self._descriptors: list[int] | None = [] if config.socket is not None else None
        self._connected = False
        self._home = Home()
        self.ended = False

    def close(self) -> None:
        """Close the socket and every descriptor that came over it."""
        self._socket.close()
        self._close_descriptors()

    @property
    def descriptor(self) -> int:
        """The socket, to be watched."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Writing, or the end of connecting, is waited for."""
        return not self._connected or bool(self._outbox)

    def send(self, data: bytes, descriptor: int = -1) -> None:
        """Queue bytes, with a descriptor that stays open until they are sent; `flush` sends them."""
        self._outbox.append((memoryview(data), descriptor))

    @property
    def wants_read(self) -> bool:
        """What comes is to be read now, and not only the end of the stream to be noticed."""
        return True

    @property
    def last_received(self) -> float | None:
        """When the last byte came, by the monotonic clock; None where only `read` brings bytes."""
        return None

    @property
    def fast(self) -> FastSession | None:
        """The session for calls that go past the engine, where there is such a way."""
        return None

    def has_made(self, call: FastCall) -> bool:
        """The call is of this link's session."""
        return False

    def session(self, view: SessionView) -> Session:
        """The session of the HELLO that was just granted."""
        return Session(view, self.send, Credits(view.welcome.credits, view.welcome.max_entries))

    def on_writable(self) -> None:
        """The socket is connected, or takes more bytes."""
        if not self._connected:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self._connected = True
            self.send(self._handshake.hello())
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now."""
        # Also what was begun before a fork must not go on in the child: it would tear the parent's stream.
        while self._outbox and self._connected and not self._home.left:
            parts, descriptor = self._next_parts()
            sent = send_some(self._socket, parts, descriptor)
            if sent == 0:
                return
            while sent and sent >= len(self._outbox[0][0]):
                sent -= len(self._outbox.popleft()[0])
            if sent:
                self._outbox[0] = (self._outbox[0][0][sent:], -1)

    def _next_parts(self) -> tuple[list[memoryview], int]:
        """What can go in one message: at most one descriptor, and that with its first byte."""
        parts: list[memoryview] = []
        for part, descriptor in islice(self._outbox, _PARTS_PER_SEND):
            if parts and descriptor >= 0:
                break
            parts.append(part)
        return parts, self._outbox[0][1]

    def read(self) -> Iterator[Frame]:
        """Yield the frames that are there; sets `ended` at the end of the stream."""
        for _ in range(_READS_PER_TURN):
            if self._home.left:
                return
            try:
                count = receive(self._socket, self._reader.buffer(), self._descriptors)
            except BlockingIOError:
                return
            if count == 0:
                self.ended = True
                return
            try:
                yield from self._reader.received(count)
            except WireError as error:
                raise ProtocolError(str(error)) from error

    def shake_hands(self, frame: Frame) -> SessionView | None:
        """Take a frame of HELLO; the session once it is granted. Raises a ClientError where it can't be."""
        welcome = self._handshake.receive(*frame)
        if welcome is None:
            self.send(self._handshake.hello())
            return None
        lease = Lease(gateway_process(self._socket) if self._config.socket is not None else None)
        arena, cache = self._map_memory(welcome, lease)
        self._reader.max_body = welcome.max_frame
        return SessionView(welcome, lease, arena, cache)

    def _map_memory(self, welcome: Welcome, lease: Lease) -> tuple[Arena | None, memoryview | None]:
        """The session's arena, and the read cache's memory where it is lent."""
        descriptors = self._descriptors or []
        wanted = bool(welcome.arena_bytes) + bool(welcome.cache_bytes)
        if len(descriptors) != wanted:
            raise ProtocolError(f"HELLO reply came with {len(descriptors)} descriptors, expected {wanted}")
        try:
            if not welcome.arena_bytes:
                return None, None
            arena = Arena(descriptors[0], welcome.arena_bytes, welcome.block_align, lease)
            return arena, map_cache(descriptors[1], welcome.cache_bytes) if welcome.cache_bytes else None
        finally:
            self._close_descriptors()
            self._descriptors = None

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors or ():
            os.close(descriptor)
        self._descriptors = None
