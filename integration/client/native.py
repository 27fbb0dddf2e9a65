"""The native module under the client: frames of the hot calls, and the waiting, without Python code.

Connecting, HELLO, reconnecting, deadlines and every unusual answer are the reference client's.
"""

from __future__ import annotations

from collections.abc import Iterator

from integration.client._native import Call, Codec, Stream, make_stream
from integration.client._native import Session as NativeSession
from integration.client.config import ClientConfig
from integration.client.errors import ProtocolError
from integration.client.keys import engine_key
from integration.client.link import FastCall, FastSession, Link
from integration.client.memory import Block
from integration.client.operations import SessionView
from integration.client.regions import RegionBlock
from integration.client.session import Session
from integration.client.transfers import Got
from integration.client.wire import Frame, Header, Status

_CODEC = Codec(Block, RegionBlock, engine_key, Got, tuple(Status))


class NativeLink(Link):
    """A link whose frames after HELLO go through a native stream, which calls may also use directly.

    `attention` is a socket that gets a byte when the engine has to look at the link though its own socket is
    not ready; -1 for a driver that reads all the time.
    """

    def __init__(self, config: ClientConfig, attention: int) -> None:
        super().__init__(config)
        self._attention = attention
        self._stream: Stream | None = None
        self._fast: NativeSession | None = None

    def close(self) -> None:
        """See Link."""
        if self._stream is not None:
            self._stream.close()
        super().close()

    @property
    def stream(self) -> Stream | None:
        """The stream of the session."""
        return self._stream

    @property
    def wants_write(self) -> bool:
        """See Link."""
        return super().wants_write if self._stream is None else self._stream.has_output

    @property
    def wants_read(self) -> bool:
        """See Link: whoever waits for a reply reads the stream."""
        return self._stream is None or self._attention < 0

    @property
    def last_received(self) -> float | None:
        """See Link."""
        return None if self._stream is None else self._stream.last_received

    @property
    def fast(self) -> FastSession | None:
        """See Link."""
        return self._fast

    def has_made(self, call: FastCall) -> bool:
        """See Link."""
        return isinstance(call, Call) and call.stream is self._stream

    def session(self, view: SessionView) -> Session:
        """See Link."""
        welcome = view.welcome
        self._stream = make_stream(
            self.descriptor, self._attention, welcome.max_frame, welcome.credits, welcome.max_entries
        )
        self._fast = NativeSession(
            self._stream, _CODEC, view.lease, welcome.max_batch, welcome.max_value, view.cache
        )
        return Session(view, self.send, self._stream)

    def send(self, data: bytes, descriptor: int = -1) -> None:
        """See Link."""
        if self._stream is None:
            super().send(data, descriptor)
        else:
            self._stream.send(data, descriptor)

    def on_writable(self) -> None:
        """See Link."""
        if self._stream is None:
            super().on_writable()
        else:
            self._stream.process()

    def read(self) -> Iterator[Frame]:
        """See Link."""
        if self._stream is None:
            for frame in super().read():
                yield frame
                # The welcome was taken: what follows is the stream's to read.
                if self._stream is not None:
                    return
            return
        self._stream.process()
        for opcode, status, entries, request_id, dialog, body in self._stream.take_foreign():
            yield Frame(Header(opcode, status, entries, request_id, dialog), memoryview(body))
        failure = self._stream.failure
        if failure is not None:
            protocol, text = failure
            raise ProtocolError(text) if protocol else OSError(0, text)
