"""A leader as agents see it: a real gRPC server that keeps what they say and sends what a test wants."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from akv.v1 import agent_pb2, agent_pb2_grpc

from controlplane.base import tls
from controlplane.base.credentials import CredentialFiles
from controlplane.base.pki import Role
from tests.support.pki import run_authority

SECONDS = 60.0


@dataclass
class Stream:
    """One agent's stream."""

    messages: list[agent_pb2.AgentMessage] = field(default_factory=list)
    outgoing: asyncio.Queue[agent_pb2.LeaderMessage] = field(default_factory=asyncio.Queue)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def register(self) -> agent_pb2.Register:
        """The first message."""
        return self.messages[0].register

    def send(self, **message: Any) -> None:
        """Queue a message, named as in LeaderMessage's oneof."""
        self.outgoing.put_nowait(agent_pb2.LeaderMessage(**message))

    def of_kind(self, kind: str) -> list[Any]:
        """Everything of one kind that came, in order."""
        return [getattr(said, kind) for said in self.messages if said.WhichOneof("message") == kind]

    async def wait(self, kind: str, where: Callable[[Any], bool] = lambda _: True) -> Any:
        """The first message of a kind that satisfies `where`."""
        try:
            async with asyncio.timeout(SECONDS):
                while True:
                    self.changed.clear()
                    for said in self.of_kind(kind):
                        if where(said):
                            return said
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(f"no such {kind} within {SECONDS} s: {self.messages}") from None

    async def event(self, state: int, shard_id: str = "") -> agent_pb2.ShardEvent:
        """The first event of that state."""

        def right(event: agent_pb2.ShardEvent) -> bool:
            return event.state == state and shard_id in {"", event.shard_id}

        event: agent_pb2.ShardEvent = await self.wait("shard_event", right)
        return event


class Leader(agent_pb2_grpc.AgentServiceServicer):
    """Serves agents; with `standby_for` set it names another host, when `deaf` it reads no more."""

    def __init__(self, heartbeat: float = 0.2) -> None:
        self.heartbeat = heartbeat
        self.streams: list[Stream] = []
        self.standby_for: str | None = None
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.deaf = False
        self.calls = 0
        self.address = ""
        self._opened = asyncio.Event()

    async def stream(self, number: int = 0) -> Stream:
        """The n-th stream that was taken, once its Register is there."""
        try:
            async with asyncio.timeout(SECONDS):
                while len(self.streams) <= number:
                    self._opened.clear()
                    await self._opened.wait()
        except TimeoutError:
            raise AssertionError(f"no stream {number} within {SECONDS} s, {self.calls} calls") from None
        return self.streams[number]

    def end_all(self) -> None:
        """End every stream as a host does whose leadership is over."""
        for stream in self.streams:
            stream.over.set()

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        self.calls += 1
        if self.standby_for is not None:
            metadata = (("akv-leader", self.standby_for),) if self.standby_for else ()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this host is a standby", metadata)
        if self.refuse is not None:
            await context.abort(*self.refuse)
        stream = Stream([await context.read()])
        ack = agent_pb2.Ack(leader="test", leader_version="0", heartbeat_seconds=self.heartbeat)
        await context.write(agent_pb2.LeaderMessage(ack=ack))
        self.streams.append(stream)
        self._opened.set()
        tasks = [
            asyncio.create_task(work)
            for work in (self._write(context, stream), self._read(context, stream), stream.over.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if stream.over.is_set():
            metadata = (("akv-leader", self.standby_for),) if self.standby_for else ()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this host is a standby", metadata)

    async def _read(self, context: Any, stream: Stream) -> None:
        if self.deaf:
            await stream.over.wait()
        while isinstance(message := await context.read(), agent_pb2.AgentMessage):
            stream.messages.append(message)
            stream.changed.set()

    async def _write(self, context: Any, stream: Stream) -> None:
        while True:
            await context.write(await stream.outgoing.get())


@asynccontextmanager
async def leader(
    host: str, *, files: CredentialFiles | None = None, port: int = 0, heartbeat: float = 0.2
) -> AsyncIterator[Leader]:
    """A leader that serves at `host`, with a certificate of the run's CA; `address` is where."""
    servicer = Leader(heartbeat)
    options = (("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 100))
    server = grpc.aio.server(options=options)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(servicer, server)
    credentials = tls.server_credentials(files or run_authority().once(Role.HOST, "leader"))
    bound = server.add_secure_port(f"{host}:{port}", credentials)
    await server.start()
    servicer.address = f"{host}:{bound}"
    try:
        yield servicer
    finally:
        await server.stop(0.2)


async def _serve_alone(host: str, folder: Path) -> None:
    """Serve with the credentials in `folder` until killed, as a process that a test can suspend."""
    async with leader(host, files=CredentialFiles.in_directory(folder)) as servicer:
        print(f"serving at {servicer.address}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_alone(sys.argv[1], Path(sys.argv[2])))
