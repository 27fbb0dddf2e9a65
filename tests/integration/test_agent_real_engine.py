"""A real engine as a shard: llama.cpp's server with random weights, installed by the agent with pip.

It is fetched from a package index (34 MB), so it is part of `make lab` and not of `make test`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.agent.connections import established
from controlplane.fleet.liveness import Limits
from tests.support.addresses import LoopbackNet
from tests.support.agents import write_config
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FleetHost, leading
from tests.support.procs import Program, python_module
from tests.support.tiny_gguf import write_tiny_model
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("AKV_REAL_ENGINE" not in os.environ, reason="fetches 34 MB: run `make lab`"),
]
SECONDS = 120.0
VERSION = "2026.10.11549"
DIGEST = "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261"
SERVER = Path(__file__).parents[1] / "support" / "llama_server.py"
LIMITS = Limits(heartbeat=0.3, suspect=5.0, lost=600.0, grace=30.0)


@dataclass
class Scene:
    """A leader, and the agent of one node as a process."""

    host: FleetHost
    config: Path
    agents: list[Program] = field(default_factory=list)

    def start_agent(self) -> Program:
        program = Program(python_module("controlplane.apps.akv_agent", "--config", str(self.config)))
        self.agents.append(program)
        return program

    async def until(self, state: pb.ShardState.ValueType, above: int = 0) -> fleet_pb2.Shard:
        """The shard once it is in this state, by a start after that one."""
        seen: list[fleet_pb2.Shard] = []
        async with self.host.operator() as stub:
            for _ in range(int(SECONDS / 0.2)):
                answer = await stub.ListShards(fleet_pb2.ListShardsRequest(), timeout=30)
                seen = list(answer.shards)
                if seen and seen[0].state == state and seen[0].generation > above:
                    return seen[0]
                await asyncio.sleep(0.2)
        raise AssertionError(f"not {pb.ShardState.Name(state)} within {SECONDS} s: {seen}")

    async def complete(self, shard: fleet_pb2.Shard, tokens: int) -> dict[str, Any]:
        """What the engine makes of a prompt, always the same."""
        wanted = {"prompt": "these are", "max_tokens": tokens, "temperature": 0, "seed": 1}
        request = urllib.request.Request(
            f"http://{shard.address}/v1/completions",
            data=json.dumps(wanted).encode(),
            headers={"content-type": "application/json"},
        )

        def ask() -> dict[str, Any]:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return dict(json.load(answer))

        return await asyncio.to_thread(ask)

    def engine_pid(self) -> int:
        state = self.config.parent / "state" / "shards" / "tiny-0-0" / "state.json"
        return int(json.loads(state.read_text())["engine"]["pid"])


@pytest_asyncio.fixture
async def scene(etcd: EtcdCluster, agent_folder: Path, loopback_net: LoopbackNet) -> AsyncIterator[Scene]:
    weights = agent_folder / "weights"
    weights.mkdir()
    write_tiny_model(weights / "tiny.gguf")
    requirements = agent_folder / "llama.txt"
    requirements.write_text(f"xllamacpp=={{version}} --hash=sha256:{DIGEST}\n".replace("{version}", VERSION))
    llama = {
        "package": "xllamacpp",
        "requirement": "xllamacpp=={version}",
        "requirements": str(requirements),
        "command": ["{env}/bin/python", str(SERVER)],
        "probe": ["{env}/bin/python", "-c", "import xllamacpp"],
    }
    async with leading(etcd, limits=LIMITS) as host:
        config = write_config(
            agent_folder,
            "node-1",
            host.api,
            address=loopback_net.host(1),
            engines={"llama": llama},
            weight_roots=[{"path": str(weights)}],
        )
        made = Scene(host, config)
        yield made
        for program in made.agents:
            program.stop()


def model() -> fleet_pb2.Model:
    profile = fleet_pb2.Profile(
        name="cpu",
        engine="llama",
        engine_version=VERSION,
        arguments=["--model", "{model_path}", "--host", "{address}", "--port", "{port}"],
        weights="tiny.gguf",
        health_path="/health",
        memory_bytes=256 << 20,
        drain_seconds=60,
        stop_grace_seconds=10,
    )
    return fleet_pb2.Model(name="tiny", replicas=1, profiles=[profile])


async def test_an_engine_is_installed_serves_crashes_is_adopted_and_drained(scene: Scene) -> None:
    first = scene.start_agent()
    async with scene.host.operator() as stub:
        wanted = [pb.EngineWant(engine="llama", version=VERSION)]
        await stub.SetEngines(fleet_pb2.SetEnginesRequest(engines=wanted), timeout=30)
        await stub.ApplyModel(fleet_pb2.ApplyModelRequest(model=model()), timeout=30)
    running = await scene.until(pb.SHARD_STATE_RUNNING)
    said = await scene.complete(running, 4)
    assert said["usage"]["completion_tokens"] == 4

    os.kill(scene.engine_pid(), signal.SIGSEGV)
    again = await scene.until(pb.SHARD_STATE_RUNNING, above=running.generation)
    assert (again.failures, again.exit_code) == (1, 128 + signal.SIGSEGV)
    assert (await scene.complete(again, 4))["choices"] == said["choices"]

    pid = scene.engine_pid()
    os.kill(first.pid, signal.SIGKILL)
    first.wait_exit(20)
    assert (await scene.complete(again, 4))["choices"] == said["choices"]
    node = scene.host.term.inventory.nodes["node-1"]
    incarnation = node.gate.incarnation
    scene.start_agent()
    await eventually(lambda: node.gate.incarnation > incarnation, "the next agent is there", SECONDS)
    adopted = await scene.until(pb.SHARD_STATE_RUNNING)
    assert (adopted.generation, scene.engine_pid()) == (again.generation, pid)

    asked = asyncio.create_task(scene.complete(adopted, 200))
    port = int(adopted.address.rpartition(":")[2])
    await eventually(lambda: established(port) > 0, "the engine is asked", SECONDS)
    async with scene.host.operator() as stub:
        await stub.ScaleModel(fleet_pb2.ScaleModelRequest(name="tiny", replicas=0), timeout=30)
    assert (await asked)["usage"]["completion_tokens"] == 200
    shards = scene.host.term.shards.statuses
    await eventually(lambda: not shards, "it is drained and gone", SECONDS)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
