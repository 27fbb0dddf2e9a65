"""The ping and witness exporters as programs: real ICMP over loopback, scraped over HTTP."""

from __future__ import annotations

import asyncio
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.base.ping_targets import PingTarget, PingTargets, encode_targets
from controlplane.exporters.ping import main
from controlplane.exporters.pinger import IcmpProbe
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_main
from tests.support.procs import Program, python_module, wait_until

PORT = 9427
FAST = ("--interval", "0.2", "--window", "4")


def scrape(address: str) -> dict[tuple[str, str], float]:
    """Samples of a program by (name, destination)."""
    with urllib.request.urlopen(f"http://{address}:{PORT}/metrics", timeout=15) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(s.name, s.labels.get("destination", "")): s.value for f in families for s in f.samples}


def wait_metrics(
    address: str, right: Callable[[dict[tuple[str, str], float]], bool]
) -> dict[tuple[str, str], float]:
    def probe() -> dict[tuple[str, str], float] | None:
        metrics = scrape(address)
        return metrics if right(metrics) else None

    return wait_until(probe, "metrics as wanted", 30.0, every=0.1)


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    return tmp_path / "targets.json"


@pytest.fixture
def exporter(loopback_net: LoopbackNet, targets: Path) -> Iterator[Program]:
    arguments = ["--listen", f"{loopback_net.host(1)}:{PORT}", "--source", loopback_net.host(1)]
    command = python_module("controlplane.exporters.ping", *arguments, "--targets", str(targets), *FAST)
    with Program(command) as program:
        program.wait_event("ready", 30.0)
        yield program


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="opens raw ICMP sockets")
def test_loss_to_each_destination_and_targets_that_change(
    exporter: Program, targets: Path, loopback_net: LoopbackNet
) -> None:
    own = loopback_net.host(1)
    exporter.wait_event("targets file not usable")
    # 192.0.2.0/24 is for documentation: a datagram from a loopback source never leaves this machine.
    peers = (PingTarget("near", loopback_net.host(2)), PingTarget("far", "192.0.2.1"))
    targets.write_bytes(encode_targets(PingTargets("storage-1", peers)))
    far, near = ("ping_loss_percent", "far"), ("ping_loss_percent", "near")
    metrics = wait_metrics(own, lambda m: m.get(far) == 100 and m.get(near, 100) == 0)
    assert metrics["ping_round_trip_seconds", "near"] > 0
    assert metrics["ping_received_total", "far"] == 0
    assert metrics["ping_socket_up", ""] == 1
    targets.write_bytes(encode_targets(PingTargets("storage-1", peers[:1])))
    wait_metrics(own, lambda m: ("ping_sent_total", "far") not in m and m["ping_sent_total", "near"] > 0)
    assert exporter.stop() == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="drops a capability")
def test_without_the_right_to_ping_it_says_so_and_reports_no_loss(
    loopback_net: LoopbackNet, targets: Path
) -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ping_group_range").read_text().split())
    if low <= os.getegid() <= high:
        pytest.skip("this machine lets every process ping")
    targets.write_bytes(encode_targets(PingTargets("s", (PingTarget("near", loopback_net.host(2)),))))
    arguments = ["--listen", f"{loopback_net.host(1)}:{PORT}", "--targets", str(targets), *FAST]
    command = ["setpriv", "--bounding-set", "-net_raw"]
    with Program([*command, *python_module("controlplane.exporters.ping", *arguments)]) as program:
        assert "CAP_NET_RAW" in program.wait_event("cannot ping", 30.0)["reason"]
        program.wait_event("ready", 30.0)
        metrics = wait_metrics(loopback_net.host(1), lambda m: m["ping_socket_up", ""] == 0)
        assert ("ping_loss_percent", "near") not in metrics
        assert len(program.events("cannot ping")) == 1


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="opens raw ICMP sockets")
@pytest.mark.parametrize("bound", [True, False])
async def test_many_destinations_at_once_each_get_their_own_reply(
    loopback_net: LoopbackNet, bound: bool
) -> None:
    probe = IcmpProbe(loopback_net.host(1) if bound else "")
    before = len(os.listdir("/proc/self/fd"))
    addresses = [loopback_net.host(number) for number in range(2, 202)]
    answers = await asyncio.gather(*(probe(address, 15.0) for address in addresses))
    assert None not in answers
    # Less where something of another test was collected meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "192.0.2.1"), "not a loopback"),
        (("--source", "here"), "not an IPv4 or IPv6"),
        (("--window", "2"), "fewer than 5 pings"),
        (("--window", "nan"), "600"),
        (("--interval", "nan"), "60"),
    ],
)
def test_wrong_usage_is_refused(arguments: tuple[str, ...], words: str) -> None:
    refused = run_main(main, "akv-ping-exporter", *arguments)
    assert refused.returncode == 2
    assert words in " ".join(refused.stderr.replace("│", " ").split())


def test_a_witness_says_that_it_is_there_and_nothing_about_cards(loopback_net: LoopbackNet) -> None:
    address = loopback_net.host(1)
    arguments = ("--listen", f"{address}:7891", "--name", "witness-1")
    with Program(python_module("controlplane.exporters.witness", *arguments)) as program:
        program.wait_event("ready", 30.0)
        with urllib.request.urlopen(f"http://{address}:7891/metrics", timeout=15) as answer:
            text = answer.read().decode()
        assert 'witness="witness-1"' in text
        assert "xdp_service_status" not in text
        assert program.stop() == 0
