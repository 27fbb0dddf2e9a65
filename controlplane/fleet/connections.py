"""The agents' open streams: one a node, each with a bounded queue of what is still to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import grpc
from akv.v1 import agent_pb2 as pb

from controlplane.base.logging import get_logger
from controlplane.base.request_errors import Overrun, Unavailable

QUEUE_MESSAGES = 64

log = get_logger("fleet-streams")


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the leader ends a stream."""

    code: grpc.StatusCode
    sentence: str


class Connection:
    """One agent's stream as the rest of the leader sees it. Create it inside the event loop.

    `writing_since` is the monotonic second at which the message that is being written was begun.
    """

    def __init__(self, node_id: str, incarnation: int, features: frozenset[str], version: str) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.features = features
        self.version = version
        self.outbox: asyncio.Queue[pb.LeaderMessage] = asyncio.Queue(QUEUE_MESSAGES)
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.writing_since: float | None = None

    def send(self, message: pb.LeaderMessage) -> None:
        """Queue a message. Raises Unavailable, or Overrun when the queue is full."""
        if self.ended.done():
            raise Unavailable(f"no agent connected: the stream of node {self.node_id} has ended")
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            raise Overrun(f"node {self.node_id} is not keeping up with commands") from None

    def end(self, ending: Ending) -> None:
        """Have the stream ended; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(ending)


class Connections:
    """The streams of all nodes."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}

    def attach(self, connection: Connection) -> None:
        """Make this the node's stream; the one before, dead by all appearances, is ended."""
        before = self._open.get(connection.node_id)
        self._open[connection.node_id] = connection
        if before is not None:
            log.warning("agent reconnected while an old stream was open", node=connection.node_id)
            before.end(Ending(grpc.StatusCode.ABORTED, "a newer stream of this node has taken its place"))

    def detach(self, connection: Connection) -> None:
        """Forget the stream, unless another one has taken its place already."""
        if self._open.get(connection.node_id) is connection:
            del self._open[connection.node_id]
        if not connection.ended.done():
            connection.ended.cancel()

    def get(self, node_id: str) -> Connection:
        """The node's stream. Raises Unavailable."""
        connection = self._open.get(node_id)
        if connection is None:
            raise Unavailable(
                f"no agent connected: node {node_id} has no stream; see that akv-agent runs there"
            )
        return connection

    def send(self, node_id: str, message: pb.LeaderMessage) -> None:
        """Queue a message for a node. Raises Unavailable, or Overrun."""
        self.get(node_id).send(message)

    def is_open(self, node_id: str) -> bool:
        """Whether the node has a stream."""
        return node_id in self._open

    def nodes(self) -> list[str]:
        """The nodes with an open stream, sorted."""
        return sorted(self._open)

    def end_those(self, nodes: Iterable[str], ending: Ending) -> None:
        """End the streams of these nodes; one without a stream is passed over."""
        for node_id in nodes:
            if (connection := self._open.get(node_id)) is not None:
                connection.end(ending)

    def end_stalled(self, now: float, limit: float) -> None:
        """End the streams that have not taken a message for `limit` seconds; `now` is monotonic.

        Pings don't tell: gRPC answers them for a program that reads none of its streams.
        """
        for node_id, connection in list(self._open.items()):
            since = connection.writing_since
            if since is not None and now - since >= limit and not connection.ended.done():
                queued = connection.outbox.qsize()
                log.warning("agent takes no commands", node=node_id, seconds=limit, queued=queued)
                sentence = f"node {node_id} has read no command for {limit:g} s"
                connection.end(Ending(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence))

    def end_all(self, ending: Ending) -> None:
        """End every stream."""
        for connection in list(self._open.values()):
            connection.end(ending)
