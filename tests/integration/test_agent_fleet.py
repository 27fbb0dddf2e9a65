"""The real agent program, with certificates, under the real leader: killed, adopted, moved, drained."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base.pki import Role
from controlplane.fleet.liveness import Limits, NodeState
from tests.support.addresses import LoopbackNet
from tests.support.agents import key_paths, write_config
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FleetHost
from tests.support.pki import TestAuthority
from tests.support.procs import Program, python_module
from tests.support.shards import ENGINE, end_all
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
SECONDS = 60.0
LIMITS = Limits(heartbeat=0.3, suspect=2.0, lost=600.0, grace=30.0)


@dataclass
class Scene:
    """A leader with mutual TLS, an authority, and agents that are processes."""

    base: Path
    etcd: EtcdCluster
    authority: TestAuthority
    net: LoopbackNet = field(default_factory=LoopbackNet.pick)
    hosts: list[FleetHost] = field(default_factory=list)

    async def host(self, name: str) -> FleetHost:
        host = FleetHost(name, self.authority, limits=LIMITS)
        await host.start()
        self.hosts.append(host)
        return host

    def config(self, node: str, *, certificate_of: str = "", **keys: Any) -> Path:
        files = self.authority.issue(Role.AGENT, certificate_of or node)
        hosts = ",".join(host.api for host in self.hosts)
        keys = {"address": self.net.host(1), **key_paths(files), **keys}
        return write_config(self.base / node, node, hosts, **keys)

    def agent(self, config: Path) -> Program:
        return Program(
            python_module("controlplane.apps.akv_agent", "--config", str(config)), name="akv-agent"
        )

    async def shard(
        self, right: Callable[[fleet_pb2.Shard], bool], what: str, leader: FleetHost | None = None
    ) -> fleet_pb2.Shard:
        """The first shard that the leader lists and that is right."""
        seen: list[fleet_pb2.Shard] = []
        async with (leader or self.hosts[0]).operator() as stub:
            for _ in range(int(SECONDS / 0.1)):
                answer = await stub.ListShards(fleet_pb2.ListShardsRequest(), timeout=SECONDS)
                seen = list(answer.shards)
                for shard in seen:
                    if right(shard):
                        return shard
                await asyncio.sleep(0.1)
        raise AssertionError(f"no shard that {what} within {SECONDS} s: {seen}")


@pytest.fixture
def scene(tmp_path: Path, etcd: EtcdCluster) -> Iterator[Scene]:
    yield Scene(tmp_path, etcd, TestAuthority(tmp_path / "pki"))
    for folder in tmp_path.iterdir():
        end_all(folder / "state" / "shards")


@pytest_asyncio.fixture
async def lead(scene: Scene) -> AsyncIterator[FleetHost]:
    host = await scene.host("host-1")
    await host.lead(scene.etcd.endpoints[0])
    yield host
    for one in scene.hosts:
        await one.stop()


def model(**profile: Any) -> fleet_pb2.Model:
    base = {
        "name": "p",
        "engine": "process",
        "arguments": [sys.executable, str(ENGINE), "--host", "{address}", "--port", "{port}"],
        "health_path": "/health",
        "drain_path": "/drain",
    }
    return fleet_pb2.Model(name="m", replicas=1, profiles=[fleet_pb2.Profile(**{**base, **profile})])


async def apply(scene: Scene, spec: fleet_pb2.Model) -> None:
    async with scene.hosts[0].operator() as stub:
        await stub.ApplyModel(fleet_pb2.ApplyModelRequest(model=spec), timeout=SECONDS)


def runs(shard: fleet_pb2.Shard) -> bool:
    return shard.state == pb.SHARD_STATE_RUNNING


async def test_a_shard_outlives_its_agent_is_adopted_and_started_anew_when_it_falls_silent(
    scene: Scene, lead: FleetHost
) -> None:
    config = scene.config("gpu-1", health_interval_ms=100, health_misses=2)
    with scene.agent(config) as agent:
        await apply(scene, model())
        first = await scene.shard(runs, "runs")
        agent.kill()
    with scene.agent(config) as agent:
        await asyncio.to_thread(agent.wait_event, "Connected to the leader", SECONDS)
        again = await scene.shard(runs, "runs again")
        assert (again.generation, again.address) == (first.generation, first.address)
        # The engine's health turns into errors: its agent ends it, and the leader starts it anew.
        host, _, port = first.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /sicken HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        failed = await scene.shard(lambda shard: shard.failures == 1, "failed once")
        assert failed.exit_code == 128 + signal.SIGTERM
        told = await asyncio.to_thread(agent.wait_event, "Shard is given up and ended", SECONDS)
        assert "unresponsive: 2 health probes failed in a row" in told["reason"]
        writer.close()
        anew = await scene.shard(lambda s: runs(s) and s.generation > first.generation, "runs anew")
        assert anew.node_id == "gpu-1"
        async with scene.hosts[0].operator() as stub:
            logs = await stub.GetLogs(
                fleet_pb2.GetLogsRequest(node_id="gpu-1", source=anew.shard_id), timeout=SECONDS
            )
            assert any("POST /sicken" in line for line in logs.lines)
            await stub.DeleteModel(fleet_pb2.DeleteModelRequest(name="m"), timeout=SECONDS)
            await eventually(lambda: not lead.term.shards.statuses, "drained, stopped and gone", SECONDS)
            logs = await stub.GetLogs(
                fleet_pb2.GetLogsRequest(node_id="gpu-1", source=anew.shard_id), timeout=SECONDS
            )
            assert any("POST /drain" in line for line in logs.lines)


async def test_a_suspended_agent_is_suspect_and_comes_back_with_its_shard(
    scene: Scene, lead: FleetHost
) -> None:
    with scene.agent(scene.config("gpu-1")) as agent:
        await apply(scene, model())
        shard = await scene.shard(runs, "runs")
        agent.suspend()
        node = lead.term.inventory.nodes["gpu-1"]
        await eventually(lambda: node.state is NodeState.SUSPECT, "it is suspect", SECONDS)
        agent.resume()
        await eventually(lambda: node.state is NodeState.READY, "it is back", SECONDS)
        again = await scene.shard(runs, "runs still")
        assert again.generation == shard.generation


async def test_the_leadership_moves_and_nothing_is_started_twice(scene: Scene, lead: FleetHost) -> None:
    other = await scene.host("host-2")
    other.follow(lead)
    with scene.agent(scene.config("gpu-1")):
        await apply(scene, model())
        first = await scene.shard(runs, "runs")
        await lead.resign()
        await other.lead(scene.etcd.endpoints[0])
        lead.follow(other)
        again = await scene.shard(runs, "runs under the new leader", other)
        assert (again.generation, again.address) == (first.generation, first.address)
        await other.resign(lead)
        await lead.lead(scene.etcd.endpoints[0])


async def test_a_certificate_of_another_node_is_refused_before_anything_is_sent(
    scene: Scene, lead: FleetHost
) -> None:
    wrong = scene.config("gpu-2", certificate_of="gpu-1")
    with scene.agent(wrong) as agent:
        assert agent.wait_exit(SECONDS) == 2
        assert "is not the certificate's name, 'gpu-1'" in agent.tail()


async def test_a_leader_of_another_authority_is_not_believed(
    scene: Scene, lead: FleetHost, tmp_path: Path
) -> None:
    stranger = TestAuthority(tmp_path / "stranger").issue(Role.AGENT, "gpu-1")
    config = write_config(
        scene.base / "gpu-1",
        "gpu-1",
        lead.api,
        **key_paths(stranger),
    )
    with scene.agent(config) as agent:
        await asyncio.to_thread(agent.wait_event, "No stream to the leader", SECONDS)
        assert "gpu-1" not in lead.term.inventory.nodes


async def test_stopping_the_agent_leaves_its_shards(scene: Scene, lead: FleetHost) -> None:
    with scene.agent(scene.config("gpu-1")) as agent:
        await apply(scene, model())
        await scene.shard(runs, "runs")
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait_exit(SECONDS) == 0
    records = [path.read_text() for path in scene.base.glob("gpu-1/state/shards/*/state.json")]
    assert ['"phase": "running"' in record for record in records] == [True]
