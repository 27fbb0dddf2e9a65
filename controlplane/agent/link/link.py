"""Keeps a stream open to whichever host leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import grpc
from akv.v1 import agent_pb2

from controlplane.agent.link.hosts import Hosts
from controlplane.agent.link.session import CHANNEL_OPTIONS, Numbers, Sent, Session, SessionError
from controlplane.agent.tasks import until_first
from controlplane.base.addresses import HostPort
from controlplane.base.backoff import Backoff
from controlplane.base.credentials import CredentialFiles, CredentialsError
from controlplane.base.logging import get_logger
from controlplane.base.tls import TLS_OPTIONS, channel_credentials

FIRST_RETRY, LONGEST_RETRY = 0.5, 30.0

log = get_logger("link")


class NodeSide(Protocol):
    """What the link tells and asks of the node."""

    def register(self) -> agent_pb2.Register:
        """All that the node is at this moment; what follows is told against it."""

    def opened(self, ack: agent_pb2.Ack) -> None:
        """A leader took the Register."""

    def beat(self) -> agent_pb2.AgentMessage:
        """The next heartbeat, or a Register where no heartbeat can tell what changed."""

    def handle(self, message: agent_pb2.LeaderMessage) -> None:
        """Begin to do what the leader says; must not wait."""

    def closed(self) -> None:
        """The stream is lost."""


class Link:
    """The stream, opened again and again. `heartbeat` is in seconds; a leader's wish comes first."""

    def __init__(
        self,
        hosts: Hosts,
        credentials: CredentialFiles | None,
        node: NodeSide,
        heartbeat: float,
        *,
        backoff: Backoff | None = None,
    ) -> None:
        self._hosts = hosts
        self._credentials = credentials
        self._node = node
        self._heartbeat = heartbeat
        self._backoff = backoff or Backoff(FIRST_RETRY, LONGEST_RETRY)
        self._numbers = Numbers()
        self._session: Session | None = None
        self._said: dict[HostPort, str] = {}

    def send(self, message: agent_pb2.AgentMessage, sent: Sent | None = None) -> bool:
        """Send on the open stream; False when there is none."""
        if self._session is None:
            return False
        self._session.send(message, sent)
        return True

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            host = self._hosts.next()
            at_once = False
            try:
                await self._one_stream(host)
            except SessionError as error:
                at_once = bool(error.leader) and self._hosts.hint(error.leader)
                self._tell(host, str(error), refused=error.refused)
            except CredentialsError as error:
                self._tell(host, str(error), refused=True)
            if not at_once:
                await asyncio.sleep(self._backoff.next())
                self._hosts.rested()

    async def _one_stream(self, host: HostPort) -> None:
        """One stream from its opening to its end. Raises SessionError or CredentialsError, always."""
        async with self._channel(host) as channel:
            session = Session(channel, self._numbers)
            try:
                ack = await session.open(self._node.register())
                self._said.clear()
                log.info("Connected to the leader", host=str(host), leader=ack.leader)
                self._hosts.arrived(host)
                self._backoff.reset()
                self._session = session
                self._node.opened(ack)
                seconds = ack.heartbeat_seconds or self._heartbeat
                await until_first(self._beat(session, seconds), session.run(self._node.handle))
            finally:
                self._session = None
                session.cancel()
                self._node.closed()

    async def _beat(self, session: Session, heartbeat: float) -> None:
        """A heartbeat each interval, without drift; one that is late does not hurry the next."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + heartbeat, loop.time())
            await asyncio.sleep(due - loop.time())
            session.send(self._node.beat())

    def _channel(self, host: HostPort) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(str(host), options=CHANNEL_OPTIONS)
        # Read each time: a renewed certificate counts for the next stream.
        shown = channel_credentials(self._credentials.load())
        return grpc.aio.secure_channel(str(host), shown, options=(*CHANNEL_OPTIONS, *TLS_OPTIONS))

    def _tell(self, host: HostPort, reason: str, *, refused: bool) -> None:
        """Log a host's reason once, and not at every try."""
        if self._said.get(host) != reason:
            self._said[host] = reason
            say: Callable[..., None] = log.error if refused else log.warning
            say("No stream to the leader", host=str(host), reason=reason)
