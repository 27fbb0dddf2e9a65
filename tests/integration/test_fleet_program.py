"""The whole fleet: three awide-cluster hosts under mTLS, two akv-agents, an HTTP engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub
from google.protobuf.message import Message

from clustercli.call import CallError, call_cluster
from clustercli.plain import plain
from clustercli.target import Target
from tests.support.addresses import LoopbackNet
from tests.support.agents import write_config
from tests.support.cli import Outcome, run_cli
from tests.support.cluster_hosts import (
    ClusterHost,
    ask_members,
    cli_json,
    cluster_hosts,
    join_all,
)
from tests.support.procs import Program, python_module, wait_until
from tests.support.shards import ENGINE, end_all

pytestmark = pytest.mark.slow
SECONDS = 60.0


@dataclass
class Scene:
    """The hosts, and the agents of two nodes."""

    hosts: list[ClusterHost]
    folder: Path
    net: LoopbackNet
    agents: dict[str, Program] = field(default_factory=dict)

    def start_agent(self, node: str, number: int) -> None:
        """Start (again) the agent of a node, with a certificate from `clustercli pki issue`."""
        pki = self.folder / node / "pki"
        if not pki.exists():
            cli_json(self.hosts[0], "pki", "issue", "--role", "agent", "--name", node, "--out", str(pki))
        keys = {f"cluster_{key}": str(pki / f"{key}.pem") for key in ("ca", "cert", "key")}
        hosts = ",".join(host.api for host in self.hosts)
        config = write_config(self.folder / node, node, hosts, address=self.net.host(100 + number), **keys)
        command = python_module("controlplane.apps.akv_agent", "--config", str(config))
        self.agents[node] = Program(command, name=node)

    def asked(self) -> ClusterHost:
        """A host that runs; the last one first, which usually does not lead."""
        return next(host for host in reversed(self.hosts) if host.running.returncode is None)

    def cli(self, *arguments: str) -> dict[str, Any]:
        return cli_json(self.asked(), *arguments)

    def run(self, *arguments: str) -> Outcome:
        """clustercli as an operator reads it; it has to succeed."""
        outcome = run_cli("--host", self.asked().asked_at, *arguments)
        assert outcome.returncode == 0, outcome.stderr
        return outcome

    def ask(self, method: str, request: Message) -> dict[str, Any] | None:
        """An answer without a process of its own, for polls; None while there is none."""
        target = Target(self.asked().asked_at)
        try:
            answer = call_cluster(
                target, 10.0, method, lambda stub: getattr(stub, method), request, FleetServiceStub
            )
        except CallError:
            return None
        return plain(answer)

    def shards(self) -> dict[str, dict[str, Any]]:
        document = self.ask("ListShards", fleet_pb2.ListShardsRequest())
        return {} if document is None else {shard["shard_id"]: shard for shard in document["shards"]}

    def wait_running(self, *shards: str) -> dict[str, dict[str, Any]]:
        def settled() -> dict[str, dict[str, Any]] | None:
            found = self.shards()
            right = set(found) == set(shards) and all(s["state"] == "running" for s in found.values())
            return found if right else None

        return wait_until(settled, f"{shards} run", SECONDS, every=0.3)

    def model(self, replicas: int, *flags: str) -> str:
        """The path of a model's file: the HTTP engine, as a process."""
        command = [sys.executable, str(ENGINE), "--host", "{address}", "--port", "{port}", *flags]
        profile = {
            "name": "cpu",
            "engine": "process",
            "arguments": command,
            "health_path": "/health",
            "stop_grace_seconds": 5,
            "drain_seconds": 5,
        }
        path = self.folder / "model.yaml"
        path.write_text(yaml.safe_dump({"name": "chat", "replicas": replicas, "profiles": [profile]}))
        return str(path)


@pytest.fixture
def scene(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Scene]:
    with cluster_hosts(tmp_path / "hosts", loopback_net, 3, secure=True) as hosts:
        join_all(hosts)
        made = Scene(hosts, tmp_path, loopback_net)
        try:
            yield made
        finally:
            for agent in made.agents.values():
                agent.stop()
            for node in made.agents:
                end_all(tmp_path / node / "state" / "shards")


def get(address: str, path: str = "/environment") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return dict(json.load(answer))


def test_models_run_crash_drain_and_outlive_their_agent_and_the_leader(scene: Scene) -> None:
    for number, node in enumerate(("gpu-1", "gpu-2"), start=1):
        scene.start_agent(node, number)

    def ready() -> dict[str, Any] | None:
        document = scene.ask("ListNodes", fleet_pb2.ListNodesRequest())
        states = [node["state"] for node in document["nodes"]] if document else []
        return document if states == ["ready", "ready"] else None

    nodes = wait_until(ready, "both nodes are ready", SECONDS, every=0.3)
    assert [node["node_id"] for node in nodes["nodes"]] == ["gpu-1", "gpu-2"]
    applied = scene.run("models", "apply", "--wait", scene.model(2))
    assert "chat is written: revision 1, 2 replicas" in applied.stdout
    assert "chat-0-0: running on gpu-" in applied.stderr
    before = scene.wait_running("chat-0-0", "chat-1-0")
    assert {shard["node_id"] for shard in before.values()} == {"gpu-1", "gpu-2"}

    check_logs(scene, before["chat-0-0"])
    check_crash(scene, before["chat-0-0"])
    check_agent_killed(scene, before["chat-1-0"])
    check_leader_killed(scene)
    check_drain(scene)

    check_words(scene)
    stopped = scene.run("stop", "chat")
    assert "Model chat is stopped" in stopped.stdout
    assert scene.shards() == {}
    scene.cli("models", "delete", "chat")
    assert scene.cli("models", "get")["models"] == []


def check_words(scene: Scene) -> None:
    """What an operator reads and says, by the names of the commands."""
    assert [line.split()[:2] for line in scene.run("nodes").stdout.splitlines() if "gpu-" in line] == [
        ["gpu-1", "ready"],
        ["gpu-2", "ready"],
    ]
    started = scene.run("start", "chat", "--replicas", "1")
    assert "Model chat: 1 replicas running" in started.stdout
    assert "only 1 replicas are wanted" in started.stderr
    assert "Model chat: 1 replicas running" in scene.run("start", "chat").stdout
    table = scene.run("shards", "--model", "chat").stdout
    assert "chat-0-0" in table
    assert "chat-1-0" not in table
    assert scene.cli("models", "get", "chat")["models"][0]["replicas"] == 1
    wanted = scene.cli("provision", "none-such=1.0")
    assert [node["not_installable"] for node in wanted["nodes"]] == [["none-such"]] * 2
    waited = run_cli("--host", scene.asked().asked_at, "provision", "--wait")
    assert waited.returncode == 1
    assert waited.stderr == "clustercli: provision: no connected node can install none-such\n"
    assert scene.cli("provision", "--nothing")["engines"] == []
    assert "chat-0-0" in scene.run("node", "gpu-2").stdout


def check_logs(scene: Scene, shard: dict[str, Any]) -> None:
    """An engine's output and the agent's own, asked through any host."""
    get(shard["address"])
    logs = scene.cli("logs", shard["node_id"], shard["shard_id"])
    assert any("GET /environment" in line for line in logs["lines"])
    assert {"agent", shard["shard_id"]} <= set(logs["sources"])
    command = ("--host", scene.asked().asked_at, "logs", shard["node_id"], shard["shard_id"], "--follow")
    with Program(python_module("clustercli.main", *command)) as follower:
        follower.wait_line("GET /environment", SECONDS)
        with contextlib.suppress(urllib.error.HTTPError):
            get(shard["address"], "/written-later")
        follower.wait_line("GET /written-later", SECONDS)
    refused = run_cli("--host", scene.asked().asked_at, "logs", shard["node_id"], "nothing")
    assert refused.returncode == 1
    assert "agent" in refused.stderr


def check_crash(scene: Scene, shard: dict[str, Any]) -> None:
    """An engine that ends by itself is started again, and its last words are kept."""
    request = urllib.request.Request(f"http://{shard['address']}/crash", method="POST")
    with contextlib.suppress(OSError, urllib.error.URLError):
        urllib.request.urlopen(request, timeout=10)

    def again() -> dict[str, Any] | None:
        found = scene.shards().get(shard["shard_id"])
        fresh = found is not None and found["generation"] > shard["generation"]
        return found if found and fresh and found["state"] == "running" else None

    restarted = wait_until(again, "it runs again", SECONDS, every=0.3)
    assert (restarted["failures"], restarted["exit_code"]) == (1, 41)
    assert "the engine found something that can't be" in restarted["last_output"]


def check_agent_killed(scene: Scene, shard: dict[str, Any]) -> None:
    """The agent dies with SIGKILL; the engine goes on, and the next agent takes it over."""
    node = shard["node_id"]
    pid = get(shard["address"])["pid"]
    first = scene.cli("node", node)["incarnation"]
    os.kill(scene.agents[node].pid, signal.SIGKILL)
    scene.agents[node].wait_exit(20)
    assert get(shard["address"])["pid"] == pid
    scene.start_agent(node, int(node[-1]))

    def back() -> bool:
        document = scene.ask("GetNode", fleet_pb2.GetNodeRequest(node_id=node))
        return document is not None and document["incarnation"] != first and document["summary"]["connected"]

    wait_until(back, f"{node} is back", SECONDS, every=0.3)
    after = scene.wait_running("chat-0-0", "chat-1-0")[shard["shard_id"]]
    assert (after["generation"], after["address"]) == (shard["generation"], shard["address"])
    assert get(shard["address"])["pid"] == pid


def check_leader_killed(scene: Scene) -> None:
    """The leading host dies; the agents find the next leader, which starts nothing that runs."""
    before = scene.wait_running("chat-0-0", "chat-1-0")
    pids = {name: get(shard["address"])["pid"] for name, shard in before.items()}
    leader = next(host for host in scene.hosts if host.name == ask_members(scene.asked())["leader"])
    leader.kill_etcd()
    os.kill(leader.running.pid, signal.SIGKILL)
    leader.running.wait_exit(20)
    after = scene.wait_running("chat-0-0", "chat-1-0")
    assert {name: s["generation"] for name, s in after.items()} == {
        name: s["generation"] for name, s in before.items()
    }
    assert {name: get(shard["address"])["pid"] for name, shard in after.items()} == pids


def check_drain(scene: Scene) -> None:
    """A drained node is emptied; both replicas run on the other."""
    drained = scene.run("drain", "gpu-1")
    assert "Node gpu-1 takes no shards and is empty" in drained.stdout
    shards = scene.wait_running("chat-0-0", "chat-1-0")
    assert {shard["node_id"] for shard in shards.values()} == {"gpu-2"}
    scene.cli("drain", "gpu-1", "--undo")
