"""One stream to one host: what is sent on it, in order and numbered, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from akv.v1 import agent_pb2, agent_pb2_grpc

from controlplane.agent.tasks import until_first

QUEUED = 512
ACK_SECONDS = 15.0
WRITE_SECONDS = 30.0
LEADER_METADATA = "akv-leader"
MAX_MESSAGE_BYTES = 8 << 20

# A suspended leader keeps its sockets; only pings that are not answered tell.
CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else a keepalive ping may stay without answer for a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

Sent = Callable[[], Awaitable[None]]


class SessionError(Exception):
    """The stream ended. `leader`: the address that the host named, or empty; `refused`: by what we are."""

    def __init__(self, reason: str, leader: str = "", *, refused: bool = False) -> None:
        super().__init__(reason)
        self.leader = leader
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, and what to do once it is on the wire."""

    message: agent_pb2.AgentMessage
    sent: Sent | None = None


class Numbers:
    """Message numbers of one incarnation, over all its streams."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """The next number."""
        self._last += 1
        return self._last


class Session:
    """An open stream. `send` never waits: a leader that does not read loses the stream."""

    def __init__(self, channel: grpc.aio.Channel, numbers: Numbers) -> None:
        self._call: Any = agent_pb2_grpc.AgentServiceStub(channel).Connect()
        self._numbers = numbers
        self._queue: asyncio.Queue[Outgoing] = asyncio.Queue(QUEUED)
        self._full = asyncio.Event()

    async def open(self, register: agent_pb2.Register) -> agent_pb2.Ack:
        """Register and return the leader's Ack. Raises SessionError."""
        try:
            async with asyncio.timeout(ACK_SECONDS):
                await self._write(Outgoing(agent_pb2.AgentMessage(register=register)))
                message = await self._read()
        except TimeoutError:
            raise SessionError(f"no Ack within {ACK_SECONDS:g} s") from None
        if message.WhichOneof("message") != "ack":
            raise SessionError("the host's first message is no Ack: is it a cluster service?")
        return message.ack

    def send(self, message: agent_pb2.AgentMessage, sent: Sent | None = None) -> None:
        """Queue a message; when the queue is full the stream is given up."""
        try:
            self._queue.put_nowait(Outgoing(message, sent))
        except asyncio.QueueFull:
            self._full.set()

    async def run(self, handle: Callable[[agent_pb2.LeaderMessage], None]) -> None:
        """Send and receive until the stream ends. Raises SessionError, always."""
        await until_first(self._write_all(), self._read_all(handle), self._give_up_when_full())

    def cancel(self) -> None:
        """End the stream."""
        self._call.cancel()

    async def _read_all(self, handle: Callable[[agent_pb2.LeaderMessage], None]) -> None:
        while True:
            handle(await self._read())

    async def _write_all(self) -> None:
        while True:
            outgoing = await self._queue.get()
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._write(outgoing)
            except TimeoutError:
                raise SessionError(f"the leader took no message for {WRITE_SECONDS:g} s") from None
            if outgoing.sent is not None:
                await outgoing.sent()

    async def _give_up_when_full(self) -> None:
        await self._full.wait()
        raise SessionError(f"{QUEUED} messages wait for the leader")

    async def _write(self, outgoing: Outgoing) -> None:
        outgoing.message.sequence = self._numbers.next()
        try:
            await self._call.write(outgoing.message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._ended(error) from None

    async def _read(self) -> agent_pb2.LeaderMessage:
        try:
            message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._ended(error) from None
        if not isinstance(message, agent_pb2.LeaderMessage):
            raise await self._ended(None)
        return message

    async def _ended(self, error: Exception | None) -> SessionError:
        """Why the stream ended, with the leader's address where the host named one."""
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else await self._call.code()
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else await self._call.details()
        metadata = await self._call.trailing_metadata()
        leader = next((str(value) for key, value in metadata or () if key == LEADER_METADATA), "")
        refusals = {
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.ALREADY_EXISTS,
        }
        name = code.name if code is not None else "ended"
        return SessionError(f"{name}: {details}", leader, refused=code in refusals)
