"""One connection to a gateway: its socket, its frames in and out, its HELLO."""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque
from collections.abc import Iterator

from integration.client.channel import gateway_process, open_socket, receive, send_some
from integration.client.config import ClientConfig
from integration.client.errors import ProtocolError
from integration.client.handshake import NONCE_BYTES, Handshake, Welcome
from integration.client.memory import Arena, Lease
from integration.client.operations import SessionView
from integration.client.wire import Frame, FrameReader, WireError

# Frames taken from the socket in one turn: other work of an event loop waits no longer than that.
_READS_PER_TURN = 16
_PARTS_PER_SEND = 16


class Link:
    """Begins to connect when made; raises OSError where that failed at once.

    The owner calls `on_writable` and `read` when the socket is ready. Every method may raise OSError: the
    connection is then of no use any more.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._socket = open_socket(config)
        self._reader = FrameReader()
        self._outbox: deque[memoryview] = deque()
        self._handshake = Handshake(config, secrets.token_bytes(NONCE_BYTES))
        self._descriptors: list[int] | None = [] if config.socket is not None else None
        self._connected = False
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

    def send(self, data: bytes) -> None:
        """Queue bytes; `flush` sends them."""
        self._outbox.append(memoryview(data))

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
        while self._outbox and self._connected:
            parts = [self._outbox[i] for i in range(min(len(self._outbox), _PARTS_PER_SEND))]
            sent = send_some(self._socket, parts)
            if sent == 0:
                return
            while sent and sent >= len(self._outbox[0]):
                sent -= len(self._outbox.popleft())
            if sent:
                self._outbox[0] = self._outbox[0][sent:]

    def read(self) -> Iterator[Frame]:
        """Yield the frames that are there; sets `ended` at the end of the stream."""
        for _ in range(_READS_PER_TURN):
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
        arena = self._map_arena(welcome, lease)
        self._reader.max_body = welcome.max_frame
        return SessionView(welcome, lease, arena)

    def _map_arena(self, welcome: Welcome, lease: Lease) -> Arena | None:
        descriptors, shared = self._descriptors or [], bool(welcome.arena_bytes)
        if len(descriptors) != shared:
            raise ProtocolError(
                f"HELLO reply came with {len(descriptors)} descriptors, expected {int(shared)}"
            )
        try:
            if not shared:
                return None
            return Arena(descriptors[0], welcome.arena_bytes, welcome.block_align, lease)
        finally:
            self._close_descriptors()
            self._descriptors = None

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors or ():
            os.close(descriptor)
        self._descriptors = None
