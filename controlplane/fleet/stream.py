"""AgentService.Connect: one agent's stream, for as long as it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from akv.v1 import agent_pb2 as pb
from akv.v1 import agent_pb2_grpc

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.base.peer_connection import close_connection
from controlplane.base.pki import Role
from controlplane.base.request_errors import InvalidRequest, RequestError
from controlplane.base.tls import NoPeerError, peer_identity
from controlplane.base.version import DISTRIBUTION, program_version
from controlplane.fleet.connections import Connection, Ending
from controlplane.fleet.gate import Verdict
from controlplane.fleet.register import first_register
from controlplane.fleet.term import Term

# Trailing metadata of a refusal: where the leader serves.
LEADER_METADATA = "akv-leader"
REGISTER_SECONDS = 15.0
# How long the end of a stream, with its reason, waits for an agent that reads.
END_SECONDS = 5.0

log = get_logger("fleet-streams")


class Refused(Exception):
    """The stream is not taken."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """Serves the agents of whichever term this host leads in.

    `term` gives the present one, None while another host leads; `leader_api` says where that is. With
    `require_identity` off (the insecure mode, asked for by name) an agent without a certificate is believed.
    """

    def __init__(
        self,
        host: str,
        term: Callable[[], Term | None],
        leader_api: Callable[[], str],
        *,
        require_identity: bool,
    ) -> None:
        self._host = host
        self._term = term
        self._leader_api = leader_api
        self._require_identity = require_identity
        self._version = program_version(DISTRIBUTION).split()[-1]

    # mypy-protobuf knows no handler that reads and writes through its context.
    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Serve one agent until either side ends the stream."""
        term = self._term()
        if term is None:
            # Before anything is read: the agent shall lose no time, and the leader alone may hold it.
            await self._refuse(context, standby(self._leader_api()))
            return
        try:
            connection, register = await self._register(context, term)
        except Refused as refusal:
            log.warning("agent refused", peer=context.peer(), reason=str(refusal))
            await self._refuse(context, Ending(refusal.code, str(refusal)))
            return
        try:
            term.welcome(connection, register)
            ending = await self._serve(context, connection, term)
        finally:
            term.connections.detach(connection)
            # Losing a stream is not losing a node: silence decides about that.
            log.info("agent stream closed", node=connection.node_id)
        if ending is not None:
            await self._end(context, connection, ending)

    async def _end(self, context: Any, connection: Connection, ending: Ending) -> None:
        """Tell the agent why its stream ends; if it does not even read that, its connection is closed."""
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._refuse(context, ending)
        except TimeoutError:
            closed = await asyncio.to_thread(close_connection, context.peer())
            log.warning(
                "agent's connection closed, it reads nothing",
                node=connection.node_id,
                reason=ending.sentence,
                closed=closed,
            )

    async def _refuse(self, context: Any, ending: Ending) -> None:
        leader = self._leader_api()
        await context.abort(ending.code, ending.sentence, ((LEADER_METADATA, leader),) if leader else ())

    async def _register(self, context: Any, term: Term) -> tuple[Connection, pb.Register]:
        """Read and check the opening message. Raises Refused."""
        try:
            async with asyncio.timeout(REGISTER_SECONDS):
                first = await context.read()
        except TimeoutError:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT, f"no opening message within {REGISTER_SECONDS:g} s"
            ) from None
        if not isinstance(first, pb.AgentMessage):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "no opening message: the stream ended")
        try:
            register = first_register(first)
        except InvalidRequest as error:
            raise Refused(error.code, str(error)) from None
        self._identify(context, register.node_id)
        if self._term() is not term:
            # Its Register took its time, and the leadership did not wait: nobody would ever end this stream.
            late = standby(self._leader_api())
            raise Refused(late.code, late.sentence)
        self._admit(term, register, first.sequence)
        return self._greet(term, register), register

    def _identify(self, context: Any, node_id: str) -> None:
        """The certificate decides who this is, not the message. Raises Refused."""
        try:
            peer = peer_identity(context)
        except NoPeerError as error:
            if not self._require_identity:
                return
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        if peer.role is not Role.AGENT or peer.name != node_id:
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED, f"the certificate is for {peer}, not for agent {node_id}"
            )

    def _admit(self, term: Term, register: pb.Register, sequence: int) -> None:
        """Note the node, unless what is known of it is newer. Raises Refused."""
        verdict = term.inventory.register(register, sequence)
        if verdict is Verdict.ADMITTED:
            return
        newest = term.inventory.nodes[register.node_id].gate.incarnation
        raise Refused(
            grpc.StatusCode.ALREADY_EXISTS,
            f"node {register.node_id} registered as incarnation {newest} already, this is a {verdict.value} "
            f"({register.incarnation}): does a second agent run with its name?",
        )

    def _greet(self, term: Term, register: pb.Register) -> Connection:
        """The new stream, with Ack and Provision in front of everything else."""
        connection = Connection(
            register.node_id, register.incarnation, frozenset(register.features), register.agent_version
        )
        ack = pb.Ack(leader=self._host, leader_version=self._version, heartbeat_seconds=term.limits.heartbeat)
        connection.send(pb.LeaderMessage(ack=ack))
        facts = term.inventory.nodes[register.node_id].facts
        if facts is not None:
            connection.send(pb.LeaderMessage(provision=term.provision(facts)))
        return connection

    async def _serve(self, context: Any, connection: Connection, term: Term) -> Ending | None:
        """Read and write until one of them, or the leader, ends the stream; why, if it was not the agent."""
        reader = asyncio.create_task(_read(context, connection, term), name=f"read-{connection.node_id}")
        writer = asyncio.create_task(
            _write(context, connection, term.clock), name=f"write-{connection.node_id}"
        )
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, connection.ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = connection.ended.result() if connection.ended.done() else None
            reader.cancel()
            writer.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return ended or next((result for result in results if isinstance(result, Ending)), None)


def standby(leader_api: str) -> Ending:
    """What a host that does not lead says."""
    where = f"connect to the leader at {leader_api}" if leader_api else "no leader is known yet, try again"
    return Ending(grpc.StatusCode.UNAVAILABLE, f"this host is a standby: {where}")


async def _read(context: Any, connection: Connection, term: Term) -> Ending | None:
    """Hand on what the agent says until it ends the stream."""
    while True:
        message = await context.read()
        if not isinstance(message, pb.AgentMessage):
            return None
        try:
            term.handle(connection, message)
        except RequestError as error:
            return Ending(error.code, str(error))


async def _write(context: Any, connection: Connection, clock: Clock) -> None:
    """Send what is queued; `Connections.end_stalled` ends the stream when it takes nothing any more."""
    while True:
        message = await connection.outbox.get()
        connection.writing_since = clock()
        await context.write(message)
        connection.writing_since = None
