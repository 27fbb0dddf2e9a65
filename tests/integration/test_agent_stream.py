"""The agent's stream against a real gRPC server: registering, telling, obeying, finding the leader again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.agent import agent as agent_module
from controlplane.agent import sampler
from controlplane.agent.engines.environment import Environment, Wanted
from controlplane.agent.shards import shard as shard_module
from tests.support.addresses import LoopbackNet, free_port
from tests.support.agent_leader import Stream, leader
from tests.support.agents import agent, write_config
from tests.support.shards import ENGINE
from tests.support.waiting import eventually
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.slow


def order(shard_id: str = "m-0-0", generation: int = 1, **fields: object) -> pb.StartShard:
    return pb.StartShard(
        request_id=f"start-{shard_id}-{generation}",
        shard_id=shard_id,
        replica_id="m-0",
        model="m",
        profile="small",
        generation=generation,
        engine="process",
        arguments=[sys.executable, str(ENGINE), "--host", "{address}", "--port", "{port}"],
        health_path="/health",
        stop_grace_seconds=5,
        **fields,  # type: ignore[arg-type]
    )


async def started(stream: Stream, start: pb.StartShard) -> pb.ShardEvent:
    stream.send(start_shard=start)
    answer = await stream.wait("command_answer", lambda said: said.request_id == start.request_id)
    assert answer.error == ""
    return await stream.event(pb.SHARD_STATE_RUNNING, start.shard_id)


def answers(request: str) -> Callable[[Any], bool]:
    """Whether an answer is the one to this request."""
    return lambda said: bool(said.request_id == request)


async def test_it_registers_with_what_it_is(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    (agent_folder / "weights" / "llama").mkdir(parents=True)
    (agent_folder / "weights" / "llama" / "model.safetensors").write_bytes(b"x" * 8192)
    async with leader(loopback_net.host(1)) as lead:
        roots = [{"path": str(agent_folder / "weights")}]
        path = write_config(agent_folder, "gpu-1", lead.address, weight_roots=roots, labels={"rack": "r1"})
        async with agent(path):
            register = (await lead.stream()).register
    assert (register.node_id, register.labels["rack"]) == ("gpu-1", "r1")
    assert register.incarnation > 0
    assert register.cpu.count > 0
    assert register.memory_total_bytes > 1 << 29
    assert register.boot_id
    assert register.storage.file_systems
    assert [(set_.path, set_.size_bytes) for set_ in register.weights.weights] == [
        (str(agent_folder / "weights" / "llama"), 8192)
    ]
    assert {"llamacpp", "vllm", "sglang"} <= set(register.installable_engines)
    assert {"logs", "logs-follow", "drain", "remove-weights"} <= set(register.features)
    assert not register.running_shards


async def test_heartbeats_carry_only_what_changed(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    root = agent_folder / "weights"
    root.mkdir()
    async with leader(loopback_net.host(1)) as lead:
        path = write_config(agent_folder, "gpu-1", lead.address, weight_roots=[{"path": str(root)}])
        async with agent(path) as running:
            stream = await lead.stream()
            await stream.wait("heartbeat", lambda beat: beat.load.cpu_count > 0)
            await asyncio.sleep(0.5)
            assert all(not beat.HasField("weights") for beat in stream.of_kind("heartbeat"))
            (root / "new").write_bytes(b"y" * 4096)
            running._weights_changed()
            beat = await stream.wait("heartbeat", lambda beat: beat.HasField("weights"))
            assert [weights.path for weights in beat.weights.weights] == [str(root / "new")]
            numbers = [message.sequence for message in stream.messages]
            assert numbers == sorted(set(numbers))


async def test_a_shard_is_started_told_and_stopped(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    async with leader(loopback_net.host(1)) as lead, agent(write_config(agent_folder, "gpu-1", lead.address)):
        stream = await lead.stream()
        event = await started(stream, order())
        assert event.port > 0
        beat = await stream.wait("heartbeat", lambda beat: bool(beat.load.shards))
        assert beat.load.shards[0].memory_rss_bytes > 1 << 20
        stream.send(stop_shard=pb.StopShard(request_id="stop", shard_id="m-0-0"))
        ended = await stream.event(pb.SHARD_STATE_STOPPED)
        assert ended.exit_code == 143
        stream.send(stop_shard=pb.StopShard(request_id="again", shard_id="m-0-0"))
        stream.send(stop_shard=pb.StopShard(request_id="other", shard_id="never-seen"))
        for request in ("again", "other"):
            answer = await stream.wait("command_answer", answers(request))
            assert answer.gone


async def test_what_cannot_be_started_is_refused_with_its_reason(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    wrong = {
        "no GPU": order("a", gpu_uuids=["GPU-nowhere"]),
        "not installed": pb.StartShard(shard_id="b", generation=1, engine="vllm"),
        "use 1 to 128": order("../../etc"),
        "not below any": order("c", weights="/etc/passwd"),
        "gateway_socket": order("d", gateway=True),
        "https": order("e", weights="s3://bucket/model"),
        "drain_signal": order("f", drain_signal="SIGKILL"),
    }
    async with leader(loopback_net.host(1)) as lead:
        roots = [{"path": str(agent_folder / "weights")}]
        (agent_folder / "weights").mkdir()
        async with agent(write_config(agent_folder, "gpu-1", lead.address, weight_roots=roots)):
            stream = await lead.stream()
            for reason, start in wrong.items():
                start.request_id = reason
                stream.send(start_shard=start)
                answer = await stream.wait("command_answer", answers(reason))
                assert reason in answer.error
    assert not list((agent_folder / "state" / "shards").iterdir())


async def test_it_goes_to_the_leader_that_a_standby_names(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as standby, leader(loopback_net.host(2)) as lead:
        standby.standby_for = lead.address
        async with agent(write_config(agent_folder, "gpu-1", standby.address)):
            stream = await lead.stream()
            # The leadership moves: the agent is sent on, and comes with what it runs.
            await started(stream, order())
            standby.standby_for, lead.standby_for = None, standby.address
            for open_stream in lead.streams:
                open_stream.outgoing.put_nowait(pb.LeaderMessage())  # unknown to this version: passed over
            lead.end_all()
            moved = await standby.stream()
            assert [shard.shard_id for shard in moved.register.running_shards] == ["m-0-0"]
            assert moved.register.running_shards[0].state == pb.SHARD_STATE_RUNNING
            assert moved.messages[0].sequence > stream.messages[-1].sequence


async def test_two_standbys_that_name_each_other_do_not_get_a_storm(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as one, leader(loopback_net.host(2)) as other:
        one.standby_for, other.standby_for = other.address, one.address
        async with agent(write_config(agent_folder, "gpu-1", f"{one.address},{other.address}")):
            await eventually(lambda: one.calls + other.calls >= 4, "it asks both", 30)
            before = one.calls + other.calls
            await asyncio.sleep(1.0)
            assert one.calls + other.calls - before <= 6


async def test_it_survives_refusals_and_dead_hosts(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    dead = f"{loopback_net.host(9)}:{free_port(loopback_net.host(9))}"
    async with leader(loopback_net.host(1)) as lead:
        lead.refuse = (grpc.StatusCode.PERMISSION_DENIED, "the certificate is not yours")
        async with agent(write_config(agent_folder, "gpu-1", f"{dead},{lead.address}")):
            await eventually(lambda: lead.calls >= 1, "it asks", 30)
            lead.refuse = None
            await lead.stream()


async def test_what_ended_while_no_leader_listened_is_told_until_it_was_surely_heard(
    agent_folder: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(loopback_net.host(1))
    async with agent(write_config(agent_folder, "gpu-1", f"{loopback_net.host(1)}:{port}")) as running:
        async with leader(loopback_net.host(1), port=port) as lead:
            stream = await lead.stream()
            start = order()
            go = agent_folder / "go"
            script = f"echo last words; until [ -e {go} ]; do sleep 0.1; done; exit 7"
            start.arguments[:] = ["/bin/sh", "-c", script]
            start.health_path = ""
            await started(stream, start)
        go.touch()
        await eventually(lambda: running._supervisor.running == [], "it ends", 30)
        async with leader(loopback_net.host(1), port=port) as lead:
            stream = await lead.stream()
            event = await stream.event(pb.SHARD_STATE_FAILED)
            assert (event.exit_code, list(event.last_output)) == (7, ["last words"])
            assert not stream.register.running_shards
            lead.end_all()
            event = await (await lead.stream(1)).event(pb.SHARD_STATE_FAILED)
            assert event.exit_code == 7, "the stream on which it was told may have been dead already"
            monkeypatch.setattr(shard_module, "DEAD_STREAM_SECONDS", 0.0)
            lead.end_all()
            again = await lead.stream(2)
            await again.wait("heartbeat")
            assert again.of_kind("shard_event") == []


async def test_a_file_system_that_hangs_keeps_no_agent_from_its_leader(
    agent_folder: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at its start, when it cleans up its weights: a pipe without a writer stands for it."""
    monkeypatch.setattr(agent_module, "FIRST_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(sampler, "STUCK_SECONDS", 0.5)
    mounts = agent_folder / "proc" / "self" / "mountinfo"
    mounts.parent.mkdir(parents=True)
    os.mkfifo(mounts)
    (agent_folder / "weights").mkdir()
    async with leader(loopback_net.host(1)) as lead:
        roots = [{"path": str(agent_folder / "weights")}]
        config = write_config(
            agent_folder, "gpu-1", lead.address, weight_roots=roots, proc_root=str(agent_folder / "proc")
        )
        async with agent(config):
            stream = await lead.stream()
            # The register comes as late as the look is given up: on a busy machine it tells already.
            if "weights: no answer" not in str(stream.register.problems):
                await stream.wait("heartbeat", lambda beat: "weights: no answer" in str(beat.new_problems))
            assert not stream.register.HasField("weights")
            assert not any(beat.HasField("weights") for beat in stream.of_kind("heartbeat"))
            start = order()
            start.weights = "somewhere"
            for number in range(20):  # each looks for its weights, and hangs
                start.shard_id = f"m-{number}-0"
                stream.send(start_shard=start)
            await started(stream, order("n-0-0"))
    with open(mounts, "w"):  # noqa: ASYNC230 - let the threads end
        pass


async def test_logs_of_agent_and_shard_by_cursor(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    async with leader(loopback_net.host(1)) as lead, agent(write_config(agent_folder, "gpu-1", lead.address)):
        stream = await lead.stream()
        await started(stream, order())

        async def ask(**fields: object) -> pb.LogsAnswer:
            request = pb.LogsRequest(**fields)  # type: ignore[arg-type]
            stream.send(logs_request=request)
            answer: pb.LogsAnswer = await stream.wait(
                "logs_answer", lambda said: said.request_id == request.request_id
            )
            return answer

        first = await ask(request_id="1", source="m-0-0", lines=10)
        assert first.lines[0].startswith("serving on 127.0.0.1:")
        assert list(first.sources) == ["agent", "m-0-0"]
        assert (await ask(request_id="2", source="m-0-0", lines=10, cursor=first.cursor)).lines == []
        missing = await ask(request_id="3", source="nothing", lines=10)
        assert "no log 'nothing'" in missing.error
        assert list(missing.sources) == ["agent", "m-0-0"]


async def test_bandwidth_over_tcp_between_two_agents(agent_folder: Path, loopback_net: LoopbackNet) -> None:
    async with leader(loopback_net.host(1)) as lead:
        one = write_config(agent_folder / "a", "a", lead.address, address=loopback_net.host(2))
        other = write_config(agent_folder / "b", "b", lead.address, address=loopback_net.host(3))
        async with agent(one), agent(other):
            streams = [await lead.stream(0), await lead.stream(1)]
            server, client = sorted(streams, key=lambda stream: stream.register.node_id)
            test = pb.FabricTestRequest(request_id="t", side=pb.FABRIC_TEST_SIDE_SERVER, seconds=1)
            server.send(fabric_test_request=test)
            listening = await server.wait("fabric_test_listening")
            test = pb.FabricTestRequest(
                request_id="t",
                side=pb.FABRIC_TEST_SIDE_CLIENT,
                seconds=1,
                peer=loopback_net.host(2),
                tcp_port=listening.tcp_port,
            )
            client.send(fabric_test_request=test)
            answers = [await side.wait("fabric_test_answer") for side in (server, client)]
    assert [answer.error for answer in answers] == ["", ""]
    assert answers[0].average_gbps == pytest.approx(answers[1].average_gbps, rel=0.01)
    assert answers[0].average_gbps > 0.01


async def test_a_fabric_that_is_not_there_is_a_clear_answer(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as lead:
        path = write_config(agent_folder, "gpu-1", lead.address, sys_root=str(agent_folder / "empty-sys"))
        async with agent(path):
            stream = await lead.stream()
            stream.send(fabric_scan_request=pb.FabricScanRequest(request_id="s", hca="mlx5_0", port=1))
            scan = await stream.wait("fabric_scan_answer")
            assert scan.error == "this node has no adapter 'mlx5_0' with a port 1"
            test = pb.FabricTestRequest(
                request_id="t", side=pb.FABRIC_TEST_SIDE_SERVER, hca="mlx5_0", port=1, seconds=1
            )
            stream.send(fabric_test_request=test)
            answer = await stream.wait("fabric_test_answer")
            assert "not installed" in answer.error or "no adapter" in answer.error


async def test_weights_are_removed_and_kept_with_reasons(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    """The node checks each path that the leader proposes."""
    root, shared = agent_folder / "weights", agent_folder / "shared"
    for name in ("old", "used"):
        (root / name).mkdir(parents=True)
        (root / name / "f").write_bytes(b"z" * 4096)
    shared.mkdir()
    for path in (agent_folder / "outside", shared / "theirs"):
        path.write_bytes(b"not to be removed")
    (root / "link").symlink_to(agent_folder / "outside")
    kept = {
        str(agent_folder / "outside"): "lies below none of this node's weight folders",
        str(shared / "theirs"): "a folder that others use too",
        str(root / "link"): "it is a link",
        str(root / "used"): "a shard uses",
        f"{root}/old/../used": "it has . or .. in it",
        str(root): "a weight folder itself",
    }
    roots = [{"path": str(root)}, {"path": str(shared), "shared": True}]
    async with (
        leader(loopback_net.host(1)) as lead,
        agent(write_config(agent_folder, "gpu-1", lead.address, weight_roots=roots)),
    ):
        stream = await lead.stream()
        await started(stream, order(weights=str(root / "used")))
        stream.send(remove_weights=pb.RemoveWeights(request_id="r", paths=[str(root / "old"), *kept]))
        answer = await stream.wait("remove_weights_answer")
        assert list(answer.removed) == [str(root / "old")]
        assert answer.freed_bytes == 4096
        assert [one.path for one in answer.kept] == list(kept)
        for one in answer.kept:
            assert kept[one.path] in one.reason
        left = [str(root / "used"), str(shared / "theirs")]
        await stream.wait("heartbeat", lambda beat: [w.path for w in beat.weights.weights] == left)
    assert (agent_folder / "outside").read_bytes() == (shared / "theirs").read_bytes()
    assert (root / "used" / "f").exists()


async def test_an_engine_is_provisioned_over_a_restart_and_a_shard_runs_in_it(
    agent_folder: Path, loopback_net: LoopbackNet
) -> None:
    """The agent ends in the middle of it; the next one needs nothing that was downloaded already."""
    wheels = agent_folder / "wheels"
    make_wheel(wheels, "1.5")
    tiny = {
        "package": "tiny-engine",
        "requirement": "tiny-engine=={version}",
        "command": ["{env}/bin/tiny-engine", "serve"],
        "probe": ["{env}/bin/python", "-c", "import tiny_engine"],
        "pip_arguments": ["--no-index", "--find-links", str(wheels)],
    }
    endless = {**tiny, "probe": ["{env}/bin/python", "-c", "import time; time.sleep(600)"]}
    wanted = [pb.EngineWant(engine="tiny", version="1.5"), pb.EngineWant(engine="none", version="1")]

    def states(**reached: str) -> Callable[[Any], bool]:
        return lambda beat: {e.engine: e.state for e in beat.provision.engines} == reached

    async with leader(loopback_net.host(1)) as lead:
        async with agent(write_config(agent_folder, "gpu-1", lead.address, engines={"tiny": endless})):
            stream = await lead.stream()
            assert "tiny" in stream.register.installable_engines
            stream.send(provision=pb.Provision(engines=wanted))
            await stream.wait("heartbeat", states(tiny="verifying", none="wanted"))
        # The source is gone, and a power cut left half a file beside what was downloaded.
        next(wheels.iterdir()).unlink()
        kept = Environment(agent_folder / "engines", Wanted("tiny", "1.5")).wheels
        (kept / "torch-9-py3-none-any.whl").write_bytes(next(kept.iterdir()).read_bytes()[:50])
        async with agent(write_config(agent_folder, "gpu-1", lead.address, engines={"tiny": tiny})):
            stream = await lead.stream(1)
            stream.send(provision=pb.Provision(engines=wanted))
            await stream.wait("heartbeat", lambda beat: beat.engines.versions.get("tiny") == "1.5")
            await stream.wait("heartbeat", states(tiny="installed", none="unsupported"))
            start = order(shard_id="t-0-0")
            start.engine, start.health_path = "tiny", ""
            start.arguments[:] = ["--port", "{port}"]
            stream.send(start_shard=start)
            ended = await stream.event(pb.SHARD_STATE_FAILED)
            assert ended.error == "ended by itself with exit code 0"
            assert ended.last_output[0].startswith("tiny engine 1.5 serve --port ")
