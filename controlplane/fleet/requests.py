"""Questions to nodes: each has an id, one waiter, a deadline, and an answer from that node only.

A question ends with the stream on which it was asked: an agent forgets then for whom it measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from akv.v1 import agent_pb2 as pb

from controlplane.base.logging import get_logger
from controlplane.base.request_errors import (
    InvalidRequest,
    NotFound,
    RequestError,
    TookTooLong,
    Unavailable,
)
from controlplane.fleet.connections import Connection, Connections

LOGS_SECONDS = 10.0
SCAN_SECONDS = 180.0
TEST_EXTRA_SECONDS = 300.0
REMOVE_SECONDS = 60.0
MAX_LOG_LINES = 5000
MAX_PATHS = 1000
MAX_TEST_SECONDS = 600
# A bandwidth test has two answers: that its server listens, and the result.
_ANSWERS = 4

# The first agent version that answers a request, by its name in Register.features.
FEATURE_SINCE = {
    "logs": "0.1.0",
    "logs-follow": "0.1.0",
    "fabric-scan": "0.1.0",
    "fabric-test": "0.1.0",
    "remove-weights": "0.1.0",
    "drain": "0.1.0",
}

log = get_logger("fleet-requests")


def test_limit(seconds: int) -> float:
    """How long a bandwidth test of so many seconds may take: its tools may have to be installed first."""
    return seconds + TEST_EXTRA_SECONDS


@dataclass(slots=True)
class Pending:
    """One request that waits for what its node answers."""

    request_id: str
    connection: Connection
    what: str
    _answers: asyncio.Queue[Any]

    @property
    def node_id(self) -> str:
        """Who was asked."""
        return self.connection.node_id

    async def next(self, seconds: float) -> Any:
        """The next answer. Raises TookTooLong, or Unavailable once the stream on which it was asked ends."""
        answer = asyncio.ensure_future(self._answers.get())
        ended = self.connection.ended
        try:
            await asyncio.wait({answer, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        finally:
            answer.cancel()
        if ended.done():
            raise Unavailable(
                f"node {self.node_id}: its stream ended before it answered {self.what}; ask again later"
            )
        raise TookTooLong(
            f"node {self.node_id} did not answer {self.what} within {seconds:g} s; see its agent's log"
        )

    def give(self, answer: Any) -> None:
        """Take an answer for the waiter; what is more than it could want is dropped."""
        with contextlib.suppress(asyncio.QueueFull):
            self._answers.put_nowait(answer)


class Requests:
    """All open requests of one leader."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._open: dict[str, Pending] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    def able(self, node_id: str, feature: str, what: str) -> Connection:
        """The node's stream, if its agent can answer this. Raises Unavailable, RequestError."""
        connection = self._connections.get(node_id)
        if feature not in connection.features:
            raise RequestError(
                f"node {node_id} runs agent {connection.version or 'of unknown version'}, which does not "
                f"answer {what}; agents from {FEATURE_SINCE[feature]} on do: upgrade it"
            )
        return connection

    def able_to_test(self, node_id: str) -> Connection:
        """As `able`, for one side of a bandwidth test."""
        return self.able(node_id, "fabric-test", "fabric tests")

    @contextlib.contextmanager
    def ask(
        self, node_id: str, feature: str, what: str, build: Callable[[str], pb.LeaderMessage]
    ) -> Iterator[Pending]:
        """Send what `build(request id)` makes; the request is forgotten at the end of the block.

        Raises Unavailable, Overrun, or RequestError at once when the agent can't answer it.
        """
        connection = self.able(node_id, feature, what)
        request_id = f"{feature}-{next(self._numbers)}"
        pending = Pending(request_id, connection, what, asyncio.Queue(_ANSWERS))
        self._open[request_id] = pending
        try:
            connection.send(build(request_id))
            yield pending
        finally:
            del self._open[request_id]

    def answered(self, node_id: str, answer: Any) -> None:
        """Hand a node's answer to its waiter; one that nobody awaits (any more) is dropped."""
        pending = self._open.get(answer.request_id)
        if pending is None:
            return
        if pending.node_id != node_id:
            log.warning("answer of another node dropped", node=node_id, asked=pending.node_id)
            return
        pending.give(answer)

    async def logs(self, node_id: str, source: str, lines: int, cursor: str) -> pb.LogsAnswer:
        """The newest lines of one of a node's logs, or those after `cursor`. Raises RequestError."""
        if not 0 <= lines <= MAX_LOG_LINES:
            raise InvalidRequest(f"{lines} lines: ask for 1 to {MAX_LOG_LINES}")
        request = pb.LogsRequest(source=source or "agent", lines=lines or 100, cursor=cursor)
        feature = "logs-follow" if cursor else "logs"

        def build(request_id: str) -> pb.LeaderMessage:
            request.request_id = request_id
            return pb.LeaderMessage(logs_request=request)

        with self.ask(node_id, feature, "requests for logs", build) as pending:
            answer: pb.LogsAnswer = await pending.next(LOGS_SECONDS)
        if answer.error:
            known = f"; it has {', '.join(answer.sources)}" if answer.sources else ""
            raise NotFound(f"node {node_id}: {answer.error}{known}")
        return answer

    async def scan_fabric(self, node_id: str, hca: str, port: int) -> pb.FabricScanAnswer:
        """Map the fabric that a node's port is on. Raises RequestError."""

        def build(request_id: str) -> pb.LeaderMessage:
            scan = pb.FabricScanRequest(request_id=request_id, hca=hca, port=port)
            return pb.LeaderMessage(fabric_scan_request=scan)

        with self.ask(node_id, "fabric-scan", "fabric scans", build) as pending:
            answer: pb.FabricScanAnswer = await pending.next(SCAN_SECONDS)
        if answer.error:
            raise RequestError(f"node {node_id} could not map the fabric of {hca}/{port}: {answer.error}")
        return answer

    async def test_fabric(
        self, server: tuple[str, pb.FabricTestRequest], client: tuple[str, pb.FabricTestRequest]
    ) -> pb.FabricTestAnswer:
        """Run one bandwidth test between two nodes; the client's figures. Raises RequestError.

        The client is asked once the server's side listens, and is told its port. All of it together may
        take `test_limit`.
        """
        seconds = client[1].seconds
        if not 1 <= seconds <= MAX_TEST_SECONDS:
            raise InvalidRequest(f"a test of {seconds} s: ask for 1 to {MAX_TEST_SECONDS}")
        self.able_to_test(client[0])  # else the server's side would wait for nobody
        limit = test_limit(seconds)
        with self._test(*server) as serving:
            listening = await serving.next(limit)
            if not isinstance(listening, pb.FabricTestListening):
                raise RequestError(f"node {server[0]} could not serve the test: {listening.error}")
            request = pb.FabricTestRequest()
            request.CopyFrom(client[1])
            request.tcp_port = listening.tcp_port
            with self._test(client[0], request) as calling:
                answer: pb.FabricTestAnswer = await calling.next(limit)
        if answer.error:
            raise RequestError(f"node {client[0]} could not run the test: {answer.error}")
        return answer

    def _test(self, node_id: str, wanted: pb.FabricTestRequest) -> contextlib.AbstractContextManager[Pending]:
        def build(request_id: str) -> pb.LeaderMessage:
            request = pb.FabricTestRequest()
            request.CopyFrom(wanted)
            request.request_id = request_id
            return pb.LeaderMessage(fabric_test_request=request)

        return self.ask(node_id, "fabric-test", "fabric tests", build)

    async def remove_weights(self, node_id: str, paths: list[str]) -> pb.RemoveWeightsAnswer:
        """Propose the deletion of cached files; the node checks each path again. Raises RequestError."""
        if not 1 <= len(paths) <= MAX_PATHS:
            raise InvalidRequest(f"{len(paths)} paths: name 1 to {MAX_PATHS}")

        def build(request_id: str) -> pb.LeaderMessage:
            return pb.LeaderMessage(remove_weights=pb.RemoveWeights(request_id=request_id, paths=paths))

        with self.ask(node_id, "remove-weights", "requests to remove weights", build) as pending:
            answer: pb.RemoveWeightsAnswer = await pending.next(REMOVE_SECONDS)
        if answer.error:
            raise RequestError(f"node {node_id} removed nothing: {answer.error}")
        return answer
