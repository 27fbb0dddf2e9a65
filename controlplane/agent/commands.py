"""Carries out what the leader says, each command in a task of its own, and answers with its request id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from akv.v1 import agent_pb2

from controlplane.agent.engines.environment import Wanted
from controlplane.agent.engines.provisioner import Provisioner
from controlplane.agent.fabric.bandwidth import BandwidthMeans, run_test
from controlplane.agent.fabric.scan import scan
from controlplane.agent.logs import read_log
from controlplane.agent.shards.spec import SpecError
from controlplane.agent.shards.supervisor import ShardRefusedError, Supervisor
from controlplane.agent.starts import Starts
from controlplane.agent.weights.cache import WeightCache
from controlplane.base.logging import get_logger

FEATURES = ("logs", "logs-follow", "fabric-scan", "fabric-test", "remove-weights", "drain")
AGENT_LOG = "agent"
MAX_TASKS = 64
MAX_DRAIN_SECONDS = 86_400.0

log = get_logger("commands")


class Commands:
    """Dispatches the leader's messages. `answer` sends on the stream that is open, if one is."""

    def __init__(
        self,
        supervisor: Supervisor,
        starts: Starts,
        provisioner: Provisioner,
        weights: WeightCache,
        answer: Callable[[agent_pb2.AgentMessage], object],
        *,
        agent_log: Path,
        tests: BandwidthMeans,
    ) -> None:
        self._supervisor = supervisor
        self._starts = starts
        self._provisioner = provisioner
        self._weights = weights
        self._answer = answer
        self._agent_log = agent_log
        self._tests = tests
        self._tasks: set[asyncio.Task[None]] = set()
        self._measurements: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Callable[[Any], Coroutine[Any, Any, None]]] = {
            "start_shard": self._start,
            "stop_shard": self._stop,
            "drain_shard": self._drain,
            "logs_request": self._logs,
            "fabric_scan_request": self._scan,
            "fabric_test_request": self._test,
            "remove_weights": self._remove,
        }

    def handle(self, message: agent_pb2.LeaderMessage) -> None:
        """Begin to do it; a message of a kind that this version does not know is passed over."""
        kind = message.WhichOneof("message")
        if kind == "provision":
            self._provisioner.want(
                Wanted(want.engine, want.version, want.variant) for want in message.provision.engines
            )
        elif kind in self._handlers:
            self._begin(kind, getattr(message, kind))
        elif kind != "ack":
            log.warning("Message of the leader passed over", kind=kind or "unknown")

    def forget(self) -> None:
        """The stream is lost, and with it whoever waits for a measurement."""
        for task in self._measurements:
            task.cancel()

    async def close(self) -> None:
        """Cancel everything that is under way; shards are not touched."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, kind: str, order: Any) -> None:
        if len(self._tasks) >= MAX_TASKS:
            log.warning("Command refused, too many are under way", kind=kind, limit=MAX_TASKS)
            self._answer(_refusal(kind, order.request_id))
            return
        task = asyncio.create_task(self._handlers[kind](order), name=f"command-{kind}")
        self._tasks.add(task)
        if kind.startswith("fabric_"):
            self._measurements.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._measurements.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("Command failed", command=task.get_name(), exc_info=error)

    async def _start(self, order: agent_pb2.StartShard) -> None:
        error = ""
        try:
            await self._starts.start(order)
        except (SpecError, ShardRefusedError) as refusal:
            error = str(refusal)
            log.warning("Start refused", shard=order.shard_id, reason=error)
        self._command_answer(order.request_id, error)

    async def _stop(self, order: agent_pb2.StopShard) -> None:
        found = self._starts.give_up(order.shard_id, order.generation)
        found = await self._supervisor.stop(order.shard_id, order.generation) or found
        self._command_answer(order.request_id, gone=not found)

    async def _drain(self, order: agent_pb2.DrainShard) -> None:
        found = self._starts.give_up(order.shard_id, order.generation)
        seconds = min(max(order.seconds, 0.0), MAX_DRAIN_SECONDS)
        found = await self._supervisor.drain(order.shard_id, order.generation, seconds) or found
        self._command_answer(order.request_id, gone=not found)

    def _command_answer(self, request_id: str, error: str = "", *, gone: bool = False) -> None:
        answer = agent_pb2.CommandAnswer(request_id=request_id, error=error, gone=gone)
        self._answer(agent_pb2.AgentMessage(command_answer=answer))

    async def _logs(self, request: agent_pb2.LogsRequest) -> None:
        shards = {shard.spec.shard_id: shard.directory.log for shard in self._supervisor.shards}
        sources = {AGENT_LOG: self._agent_log, **shards}
        answer = agent_pb2.LogsAnswer(request_id=request.request_id, sources=sorted(sources))
        path = sources.get(request.source or AGENT_LOG)
        if path is None:
            answer.error = f"this node has no log {request.source[:80]!r}"
        else:
            excerpt = await asyncio.to_thread(read_log, path, request.lines, request.cursor)
            answer.lines.extend(excerpt.lines)
            answer.cursor = excerpt.cursor
        self._answer(agent_pb2.AgentMessage(logs_answer=answer))

    async def _scan(self, request: agent_pb2.FabricScanRequest) -> None:
        answer = await scan(request, self._tests.sys_root)
        self._answer(agent_pb2.AgentMessage(fabric_scan_answer=answer))

    async def _test(self, request: agent_pb2.FabricTestRequest) -> None:
        def listening(port: int) -> None:
            said = agent_pb2.FabricTestListening(request_id=request.request_id, tcp_port=port)
            self._answer(agent_pb2.AgentMessage(fabric_test_listening=said))

        answer = await run_test(request, self._tests, listening)
        self._answer(agent_pb2.AgentMessage(fabric_test_answer=answer))

    async def _remove(self, request: agent_pb2.RemoveWeights) -> None:
        answer = await self._weights.remove(request, self._starts.weights_in_use())
        self._answer(agent_pb2.AgentMessage(remove_weights_answer=answer))


def _refusal(kind: str, request_id: str) -> agent_pb2.AgentMessage:
    """The answer to a command that is not even begun."""
    error = f"{MAX_TASKS} commands are under way on this node; try again"
    answers = {
        "logs_request": ("logs_answer", agent_pb2.LogsAnswer),
        "fabric_scan_request": ("fabric_scan_answer", agent_pb2.FabricScanAnswer),
        "fabric_test_request": ("fabric_test_answer", agent_pb2.FabricTestAnswer),
        "remove_weights": ("remove_weights_answer", agent_pb2.RemoveWeightsAnswer),
    }
    name, answer = answers.get(kind, ("command_answer", agent_pb2.CommandAnswer))
    said: Any = answer(request_id=request_id, error=error)
    return agent_pb2.AgentMessage(**{name: said})
