"""What clustercli asks of real agents over the leader: fabrics (adapters are trees of /sys), weights."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from akv.v1 import agent_pb2 as pb

from controlplane.base.pki import Role
from tests.support import perftest
from tests.support.addresses import LoopbackNet
from tests.support.agents import agent, write_config
from tests.support.cli import Outcome, run_cli
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FAST, FleetHost, leading
from tests.support.sysfs import infiniband
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@dataclass
class Scene:
    """A leader and nodes with adapters; `tools` is the only folder of their PATH beside the system's."""

    folder: Path
    host: FleetHost
    net: LoopbackNet
    stack: AsyncExitStack
    tools: Path

    async def node(self, name: str, number: int, lay: Callable[[Path], None], **keys: Any) -> None:
        sys_root = self.folder / name / "sys"
        sys_root.mkdir(parents=True)
        lay(sys_root)
        address = self.net.host(number)
        config = write_config(
            self.folder / name, name, self.host.api, address=address, sys_root=str(sys_root), **keys
        )
        await self.stack.enter_async_context(agent(config))
        nodes = self.host.term.inventory.nodes
        await eventually(lambda: name in nodes and nodes[name].facts is not None, f"{name} is known", 30)

    async def cli(self, *arguments: str) -> Outcome:
        files = self.host.authority.once(Role.ADMIN, "olga")
        shown = ("--ca", str(files.ca), "--cert", str(files.certificate), "--key", str(files.key))
        return await asyncio.to_thread(run_cli, "--host", self.host.api, *shown, *arguments)

    async def document(self, *arguments: str) -> tuple[dict[str, Any], Outcome]:
        outcome = await self.cli("--output", "json", *arguments)
        return json.loads(outcome.stdout), outcome


@pytest_asyncio.fixture
async def scene(
    etcd: EtcdCluster, tmp_path: Path, loopback_net: LoopbackNet, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    # The service runs in this process too: its log stays out of what clustercli prints.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    async with leading(etcd, limits=FAST) as host, AsyncExitStack() as stack:
        yield Scene(tmp_path, host, loopback_net, stack, tools)
    structlog.reset_defaults()


def two_rails(sys_root: Path) -> None:
    for hca in ("mlx5_0", "mlx5_1"):
        infiniband(sys_root, hca)


async def test_rails_are_measured_and_graded_and_the_tool_is_installed_once(scene: Scene) -> None:
    """Four ports face three; perftest is missing until the first test."""
    install = ["/bin/ln", "-s", perftest.__file__, str(scene.tools / "ib_write_bw")]

    def client(sys_root: Path) -> None:
        two_rails(sys_root)
        infiniband(sys_root, "mlx5_2", state="1: DOWN")
        infiniband(sys_root, "mlx5_10", rate="400 Gb/sec (4X NDR)")

    def server(sys_root: Path) -> None:
        two_rails(sys_root)
        infiniband(sys_root, "mlx5_2")
        infiniband(sys_root, "mlx5_10")

    await scene.node("gpu-1", 1, client, perftest_install=install)
    await scene.node("gpu-2", 2, server, perftest_install=install)
    document, outcome = await scene.document("fabric-test", "gpu-1", "gpu-2", "--seconds", "1")
    assert outcome.returncode == 1
    rails = {rail["server_hca"]: rail for rail in document["rails"]}
    assert list(rails) == ["mlx5_0", "mlx5_1", "mlx5_10", "mlx5_2"]
    good, bad = rails["mlx5_0"], rails["mlx5_1"]
    assert (good["client_hca"], good["average_gbps"], good["rate_gbps"]) == ("mlx5_0", 392.11, 400)
    assert (good["grade"], good["gid_index"], good["share"]) == ("good", -1, pytest.approx(0.98, abs=0.01))
    assert (bad["grade"], bad["error"]) == ("bad", "")
    assert rails["mlx5_10"]["grade"] == "good"
    lone = "mlx5_2/1 of gpu-2 has no counterpart on gpu-1, where mlx5_2/1 is DOWN"
    assert (rails["mlx5_2"]["error"], rails["mlx5_2"]["grade"]) == (lone, "unspecified")
    assert "rail 2 of 4: mlx5_1/1 → mlx5_1/1 on ib-fe80000000000000" in outcome.stderr
    assert "bad: 251.7 Gb/s, 63 % of 400 Gb/s" in outcome.stderr
    shown = await scene.cli("fabric-test", "gpu-1", "gpu-2", "--seconds", "1")
    assert "gpu-1 to gpu-2, 1 s each" in shown.stdout
    assert lone in shown.stdout


async def test_a_tool_that_fails_or_is_missing_is_told_and_the_other_rails_go_on(scene: Scene) -> None:
    def rails(sys_root: Path) -> None:
        for hca in ("bad_0", "mlx5_0"):
            infiniband(sys_root, hca)

    for number, name in enumerate(("gpu-1", "gpu-2"), start=1):
        await scene.node(name, number, rails)
    document, outcome = await scene.document("fabric-test", "gpu-1", "gpu-2", "--seconds", "1")
    assert outcome.returncode == 1
    assert {rail["error"] for rail in document["rails"]} == {
        "node gpu-2 could not serve the test: ib_write_bw is not installed on this node: install the package "
        "perftest, or set perftest_install"
    }
    (scene.tools / "ib_write_bw").symlink_to(perftest.__file__)
    document, _ = await scene.document("fabric-test", "gpu-1", "gpu-2", "--seconds", "1")
    failed, good = document["rails"]
    assert "Couldn't initialize ROCE device bad_0" in failed["error"]
    assert good["grade"] == "good"


async def test_without_adapters_the_network_is_tested_over_tcp(scene: Scene) -> None:
    for number, name in enumerate(("a", "b"), start=1):
        await scene.node(name, number, lambda root: None)
    refused = await scene.cli("fabric-test", "a", "b")
    assert refused.returncode == 1
    assert "share no fabric with active adapters (a is on none; b is on none)" in refused.stderr
    document, outcome = await scene.document("fabric-test", "a", "b", "--tcp", "--seconds", "1")
    assert outcome.returncode == 0, outcome.stderr
    [rail] = document["rails"]
    assert (rail["grade"], rail["error"], rail["rate_gbps"]) == ("unspecified", "", 0)
    assert rail["average_gbps"] > 0.01
    for words, problem in (
        (("a", "a"), "'a' is both nodes"),
        (("a", "nobody"), "there is no node 'nobody'"),
    ):
        outcome = await scene.cli("fabric-test", *words)
        assert (outcome.returncode, problem in outcome.stderr) == (1, True), outcome.stderr


async def test_an_agent_that_can_not_test_is_refused_before_the_other_is_asked(scene: Scene) -> None:
    await scene.node("gpu-1", 1, two_rails)
    async with scene.host.agent("gpu-2", features=("logs",)) as old:
        await old.connect()
        await old.hear("ack")
        outcome = await scene.cli("fabric-test", "gpu-2", "gpu-1")
        assert outcome.returncode == 1
        assert "node gpu-2 runs agent 0.1.0, which does not answer fabric tests" in outcome.stderr


async def test_fabrics_are_mapped_on_demand_and_by_the_leader_itself(scene: Scene) -> None:
    """One node on each fabric is asked, by name the first."""
    tool = scene.tools / "ibnetdiscover"
    tool.write_text('#!/bin/sh\necho "Switch 36 \\"S-1\\" # $*"\necho "Ca 2 \\"H-1\\""\n')
    tool.chmod(0o755)
    await scene.node("gpu-1", 1, two_rails)
    await scene.node("gpu-2", 2, two_rails)
    document, outcome = await scene.document("fabric-scan", "gpu-2")
    assert outcome.returncode == 0, outcome.stderr
    assert (document["hca"], document["port"]) == ("mlx5_0", 1)
    assert document["output"].splitlines()[0] == 'Switch 36 "S-1" # -C mlx5_0 -P 1'
    shown = await scene.cli("fabric-scan", "gpu-2", "mlx5_1/1")
    assert "seen from gpu-2 mlx5_1/1" in shown.stdout
    wrong = await scene.cli("fabric-scan", "gpu-2", "mlx5_9")
    assert (wrong.returncode, "no adapter 'mlx5_9'" in wrong.stderr) == (1, True)
    assert (await scene.cli("fabric-scan", "gpu-2", "mlx5_1/x")).returncode == 2

    await scene.host.term.scans.scan_all()
    [found] = (await scene.document("fabric-scan"))[0]["maps"]
    assert (found["fabric"], found["node_id"], found["hca"]) == ("ib-fe80000000000000", "gpu-1", "mlx5_0")
    assert found["output"] == ""
    assert "1 switches, 1 adapters, 0 routers" in (await scene.cli("fabric-scan")).stdout
    whole = await scene.cli("fabric-scan", "--fabric", found["fabric"])
    assert 'Ca 2 "H-1"\n\nseen from gpu-1 mlx5_0/1 in' in whole.stdout
    unknown = await scene.cli("fabric-scan", "--fabric", "x")
    assert (unknown.returncode, "no map of a fabric 'x'" in unknown.stderr) == (1, True)
    tool.write_text("#!/bin/sh\necho no permission; exit 3\n")
    await scene.host.term.scans.scan_all()
    failed = await scene.cli("fabric-scan")
    assert failed.returncode == 1
    assert "ended with code 3: no permission" in failed.stdout


async def test_a_rate_is_shown_while_there_is_traffic_and_falls_to_nothing_after_it(scene: Scene) -> None:
    await scene.node("gpu-1", 1, two_rails)
    counter = scene.folder / "gpu-1/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    node = scene.host.term.inventory.nodes["gpu-1"]

    def rate() -> float:
        assert node.facts is not None
        found = node.facts.rates.get(("mlx5_0", 1))
        return found.transmit if found is not None else 0.0

    sent = itertools.count(50_000_000, 1000)

    def flows() -> bool:
        counter.write_text(str(next(sent)))
        return rate() > 0

    await eventually(flows, "there is a rate", 30)
    await eventually(lambda: rate() == 0, "it is over", 30)


async def test_weights_are_shown_removed_or_kept_and_a_node_is_forgotten(scene: Scene) -> None:
    root = scene.folder / "weights"
    (root / "old").mkdir(parents=True)
    (root / "old" / "f").write_bytes(b"z" * 8192)
    await scene.node("gpu-1", 1, two_rails, weight_roots=[{"path": str(root)}])
    document, _ = await scene.document("weights", "gpu-1")
    assert [(one["path"], one["size_bytes"]) for one in document["weights"]] == [(str(root / "old"), 8192)]
    assert "8.2 kB" in (await scene.cli("weights", "gpu-1")).stdout
    kept = await scene.cli("weights", "gpu-1", "--remove", str(root / "old"), "--remove", "/etc/passwd")
    assert kept.returncode == 1
    assert f"removed {root / 'old'}" in kept.stdout
    assert "kept /etc/passwd: it lies below none of this node's weight folders" in kept.stdout
    assert not (root / "old").exists()
    refused = await scene.cli("forget-node", "gpu-1")
    assert (refused.returncode, "stop its akv-agent first" in refused.stderr) == (1, True)
    await scene.stack.aclose()
    connections = scene.host.term.connections
    await eventually(lambda: not connections.is_open("gpu-1"), "it is gone", 30)
    assert "Node gpu-1 is forgotten" in (await scene.cli("forget-node", "gpu-1")).stdout
    assert scene.host.term.inventory.nodes == {}


async def test_a_fabric_that_is_no_more_is_forgotten(scene: Scene) -> None:
    port = pb.IbPort(hca="m", port=1, state="ACTIVE", link_layer="InfiniBand", sm_guid="aa")
    async with scene.host.agent() as agent:

        async def answer(message: pb.LeaderMessage) -> None:
            if message.HasField("fabric_scan_request"):
                said = pb.FabricScanAnswer(request_id=message.fabric_scan_request.request_id, output="Switch")
                await agent.say(fabric_scan_answer=said)

        agent.on_message = answer
        await agent.connect(ib_ports=pb.IbPortsReport(ports=[port]))
        await agent.hear("ack")
        await scene.host.term.scans.scan_all()
        assert list(scene.host.term.scans.maps) == ["aa"]
        port.state = "DOWN"
        await agent.say(heartbeat=pb.Heartbeat(ib_ports=pb.IbPortsReport(ports=[port])))
        node = scene.host.term.inventory.nodes["gpu-1"]
        await eventually(lambda: node.facts is not None and node.facts.ports[0].state == "DOWN", "it is down")
        await scene.host.term.scans.scan_all()
        assert scene.host.term.scans.maps == {}
