"""What can happen to an agent from outside: a suspended leader, lost streams, nonsense, bursts, bad disks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.agent.link import link as link_module
from controlplane.agent.link import session as session_module
from controlplane.base.backoff import Backoff
from controlplane.base.pki import Role
from tests.support.addresses import LoopbackNet
from tests.support.agent_leader import leader
from tests.support.agents import agent, write_config
from tests.support.pki import run_authority
from tests.support.procs import Program, python_module
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


async def test_a_suspended_leader_is_left(
    agent_folder: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets stay open and take what is sent; only its missing answers to pings tell."""
    timers = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = tuple({**dict(session_module.CHANNEL_OPTIONS), **dict.fromkeys(timers, 500)}.items())
    monkeypatch.setattr(link_module, "CHANNEL_OPTIONS", options)
    folder = str(run_authority().once(Role.HOST, "leader").ca.parent)
    with Program(python_module("tests.support.agent_leader", loopback_net.host(1), folder)) as first:
        line = await asyncio.to_thread(first.wait_line, "serving at")
        async with leader(loopback_net.host(2)) as second:
            hosts = f"{line.split()[-1]},{second.address}"
            async with agent(write_config(agent_folder, "gpu-1", hosts)) as running:
                await eventually(lambda: running._link._session is not None, "it is connected", 30)
                first.suspend()
                await second.stream()


@pytest.mark.parametrize(
    ("count", "size", "reason"),
    [
        (session_module.QUEUED + 1, 1, "messages wait for the leader"),
        (8, 1 << 20, "took no message for 0.5 s"),
    ],
)
async def test_a_leader_that_reads_nothing_loses_the_stream(
    agent_folder: Path,
    loopback_net: LoopbackNet,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    size: int,
    reason: str,
) -> None:
    monkeypatch.setattr(session_module, "WRITE_SECONDS", 0.5)
    reasons: list[str] = []
    monkeypatch.setattr(link_module.Link, "_tell", lambda link, host, why, refused: reasons.append(why))
    async with leader(loopback_net.host(1)) as lead:
        lead.deaf = True
        async with agent(write_config(agent_folder, "gpu-1", lead.address)) as running:
            await eventually(lambda: running._link._session is not None, "it is connected", 30)
            for number in range(count):
                lines = ["x" * size]
                answer = pb.AgentMessage(logs_answer=pb.LogsAnswer(request_id=str(number), lines=lines))
                assert running._link.send(answer)
            await lead.stream(1)
    assert reason in reasons[0]


async def test_a_hundred_lost_streams_leave_nothing_behind(
    agent_folder: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(link_module, "LONGEST_RETRY", 0.002)
    process = psutil.Process()
    async with leader(loopback_net.host(1)) as lead, agent(write_config(agent_folder, "gpu-1", lead.address)):
        before: tuple[int, int] | None = None
        for number in range(100):
            stream = await lead.stream(number)
            stream.over.set()
            if number == 20:
                before = (process.num_fds(), len(asyncio.all_tasks()))
        await lead.stream(100)
        assert before is not None
        await eventually(
            lambda: process.num_fds() <= before[0] + 8 and len(asyncio.all_tasks()) <= before[1] + 8,
            f"descriptors and tasks are as before, {before}",
        )
    numbers = [stream.messages[0].sequence for stream in lead.streams]
    assert numbers == sorted(set(numbers))


async def test_a_leader_that_says_nonsense_harms_nothing(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as lead, agent(write_config(agent_folder, "gpu-1", lead.address)):
        stream = await lead.stream()
        stream.send()
        stream.send(start_shard=pb.StartShard())
        stream.send(stop_shard=pb.StopShard())
        stream.send(drain_shard=pb.DrainShard(seconds=float("nan")))
        stream.send(drain_shard=pb.DrainShard(seconds=-1e300))
        stream.send(fabric_test_request=pb.FabricTestRequest())
        stream.send(fabric_scan_request=pb.FabricScanRequest(hca="../../../etc", port=2**32 - 1))
        stream.send(logs_request=pb.LogsRequest(source="../../etc/passwd", lines=2**32 - 1))
        stream.send(logs_request=pb.LogsRequest(lines=2**32 - 1, cursor="9" * 5000))
        stream.send(remove_weights=pb.RemoveWeights(paths=["/", "", "\0", "/proc/self/root"] * 300))
        stream.send(provision=pb.Provision(engines=[pb.EngineWant(engine="x/../..", version="; rm -rf /")]))
        await stream.wait("heartbeat", lambda beat: beat.HasField("provision"))
        kinds = {
            "command_answer": 4,
            "logs_answer": 2,
            "fabric_test_answer": 1,
            "fabric_scan_answer": 1,
            "remove_weights_answer": 1,
        }
        await eventually(
            lambda: all(len(stream.of_kind(kind)) == count for kind, count in kinds.items()),
            "everything is answered",
            30,
        )
        assert len(lead.streams) == 1


async def test_a_burst_of_commands_is_bounded(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    async with (
        leader(loopback_net.host(1)) as lead,
        agent(write_config(agent_folder, "gpu-1", lead.address)) as running,
    ):
        stream = await lead.stream()
        for number in range(400):
            stream.send(logs_request=pb.LogsRequest(request_id=str(number), lines=1))
        await stream.wait("logs_answer", lambda said: said.request_id == "0")
        assert len(running._commands._tasks) <= 64
        await eventually(lambda: len(stream.of_kind("logs_answer")) == 400, "each is answered", 30)
        errors = {answer.error for answer in stream.of_kind("logs_answer")}
        assert errors <= {"", "64 commands are under way on this node; try again"}
        assert len(lead.streams) == 1
        late = pb.LogsRequest(request_id="late", lines=1)
        await eventually(lambda: not running._commands._tasks, "all are done", 30)
        stream.send(logs_request=late)
        await stream.wait("logs_answer", lambda said: said.request_id == "late")


async def test_a_start_on_a_full_disk_is_refused(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    async with leader(loopback_net.host(1)) as lead, agent(write_config(agent_folder, "gpu-1", lead.address)):
        stream = await lead.stream()
        (agent_folder / "state" / "shards" / "m-0-0").write_text("a file where its directory should be")
        order = pb.StartShard(
            request_id="s", shard_id="m-0-0", generation=1, engine="process", arguments=["/bin/true"]
        )
        stream.send(start_shard=order)
        answer = await stream.wait("command_answer")
        assert "its record can't be written" in answer.error
    os.unlink(agent_folder / "state" / "shards" / "m-0-0")


def test_backoff_of_the_link_is_what_the_manual_says() -> None:
    backoff = Backoff(link_module.FIRST_RETRY, link_module.LONGEST_RETRY, uniform=lambda: 0.0)
    assert [backoff.next() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
