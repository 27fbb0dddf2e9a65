"""A bandwidth test over plain TCP: for nodes without RDMA adapters, and for the network under RoCE.

The client sends a greeting and then zeros for the time of the test; the server counts and answers with what
it got: 8 bytes of count and 8 bytes of nanoseconds, little-endian.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

GREETING = b"akv-tcp-test-1\n"
CONNECT_SECONDS = 30.0
MARGIN_SECONDS = 10.0
MAX_MESSAGE = 16 << 20
_RESULT = struct.Struct("<QQ")


class TcpTestError(Exception):
    """A test that came to nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What the server received."""

    count: int
    seconds: float

    @property
    def gbps(self) -> float:
        """10^9 bits a second."""
        return self.count * 8 / self.seconds / 1e9 if self.seconds > 0 else 0.0


async def serve(address: str, port: int, seconds: int, listening: Callable[[int], None]) -> Moved:
    """Receive one test at `address`; `listening` is told the port. Raises TcpTestError."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Moved] = loop.create_future()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            moved = await _receive(reader)
            writer.write(_RESULT.pack(moved.count, round(moved.seconds * 1e9)))
            await writer.drain()
            if not result.done():
                result.set_result(moved)
        except (OSError, asyncio.IncompleteReadError, TcpTestError) as error:
            if not result.done():
                result.set_exception(TcpTestError(f"the client broke off: {error}"))
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(receive, address, port, limit=1 << 20)
    except OSError as error:
        raise TcpTestError(f"can't listen at {address}: {error}") from error
    async with server:
        listening(server.sockets[0].getsockname()[1])
        try:
            async with asyncio.timeout(CONNECT_SECONDS + seconds + MARGIN_SECONDS):
                return await result
        except TimeoutError:
            raise TcpTestError("no client came, or it did not end in time") from None


async def send(peer: str, port: int, seconds: int, message_bytes: int) -> Moved:
    """Send to a server for `seconds`; what it received. Raises TcpTestError."""
    block = bytes(min(max(message_bytes, 1), MAX_MESSAGE))
    try:
        async with asyncio.timeout(CONNECT_SECONDS + seconds + MARGIN_SECONDS):
            reader, writer = await asyncio.open_connection(peer, port)
            try:
                writer.write(GREETING)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    writer.write(block)
                    await writer.drain()
                writer.write_eof()
                count, nanoseconds = _RESULT.unpack(await reader.readexactly(_RESULT.size))
            finally:
                writer.close()
    except TimeoutError:
        raise TcpTestError(f"{peer}:{port} did not answer in time") from None
    except (OSError, asyncio.IncompleteReadError) as error:
        raise TcpTestError(f"{peer}:{port}: {error}") from error
    return Moved(count, nanoseconds / 1e9)


async def _receive(reader: asyncio.StreamReader) -> Moved:
    if await reader.readexactly(len(GREETING)) != GREETING:
        raise TcpTestError("the other side does not speak this test")
    begin = time.monotonic()
    count = 0
    while data := await reader.read(1 << 20):
        count += len(data)
    return Moved(count, time.monotonic() - begin)
