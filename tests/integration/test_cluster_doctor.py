"""clustercli doctor: a host that is ready, and what keeps others from joining."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from controlplane.cluster.doctor_docker import check_docker
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli
from tests.support.cluster_hosts import ClusterHost, card, cli_json, cluster_hosts
from tests.support.docker_engine import DockerServer, Engine
from tests.support.softcard import Card

pytestmark = pytest.mark.slow


def report(host: ClusterHost, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and the checks by name."""
    outcome = run_cli("--host", host.api, "--output", "json", "doctor", *arguments)
    assert outcome.stdout, outcome.stderr
    document: dict[str, Any] = json.loads(outcome.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert document["failed"] == sum(check["result"] == "failed" for check in checks.values())
    assert outcome.returncode == int(document["failed"] > 0)
    assert all(check["remedy"] for check in checks.values() if check["result"] in {"failed", "warning"})
    return outcome.returncode, checks


def listing(real: Card, serial: str) -> dict[str, Any]:
    address = {"transport": "tcp", "traddr": real.address[0], "trsvcid": str(real.address[1])}
    return card(1) | {"serial": serial, "nqn": real.nqn, "addresses": [address]}


def test_a_host_before_it_joins(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with (
        Card(tmp_path / "cards", loopback_net.host(11), serial="L0P1") as real,
        cluster_hosts(tmp_path / "hosts", loopback_net, 2, AWC_DATA_ADDRESSES="127.0.0.1") as (first, second),
    ):
        first.set_cards()
        cli_json(first, "create_cluster", "--name", "kv-cache")
        second.set_cards(listing(real, "L0P1"))
        second.start_exporter()

        code, checks = report(second, "-n", first.api)
        # The disk of a busy machine may be too slow for etcd, and is told so.
        failed = {name for name, check in checks.items() if check["result"] == "failed"}
        assert failed <= {"disk-latency"}, checks
        for name in ("port-2379", "port-2380", "exporter", "etcd-binary", "card-cli", "serial-xdp1"):
            assert checks[name]["result"] == "ok", checks[name]
        for name in ("cluster", "identity", "from-host-1", "clock-host-1"):
            assert checks[name]["result"] == "ok", checks[name]
        assert first.api not in checks["to-host-1"]["text"], "it is reached"
        assert "127.0.0.1 " not in checks["to-host-1"]["text"], "a data address is no endpoint"
        assert checks["names-host-1"]["result"] == "warning", "nobody resolves the names of this test"
        assert checks["disk-latency"]["result"] in {"ok", "warning", "failed"}
        for port in (5000, 2379, 2380, 7891):
            assert f"{second.address}:{port}" in checks["from-host-1"]["text"]

        second.set_cards(listing(real, "HW-1"))
        with socket.create_server((second.address, 2380)):
            code, checks = report(second)
        assert code == 1
        assert checks["port-2380"]["result"] == "failed"
        assert checks["serial-xdp1"]["result"] == "failed"
        assert "AWC_XDP_SERIALS=xdp1:L0P1" in checks["serial-xdp1"]["remedy"]
        assert checks["cluster"]["result"] == "skipped"

        # The one connection that it takes is taken: to others it is silent, as behind a firewall.
        peer = (second.address, 2380)
        with socket.create_server(peer, backlog=0), socket.create_connection(peer, timeout=10):
            code, checks = report(second, "-n", first.api)
        assert code == 1
        assert checks["from-host-1"]["result"] == "failed"
        assert f"host-1 does not reach {second.address}:2380" in checks["from-host-1"]["text"]
        assert "open these ports of this host towards host-1" in checks["from-host-1"]["remedy"]

        second.set_cli("exit 3")
        code, checks = report(second, "-n", f"{loopback_net.host(9)}:5000")
        assert code == 1
        assert checks["card-cli"]["result"] == checks["cluster"]["result"] == "failed"


def test_a_member_and_a_card_that_another_host_has(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with cluster_hosts(tmp_path, loopback_net, 2) as (first, second):
        cli_json(first, "create_cluster", "--name", "kv-cache")
        code, checks = report(first)
        assert checks["etcd-ports"]["result"] == "skipped"
        assert checks["exporter"]["result"] == "warning"
        second.set_cards(card(1) | {"id": "xdp7", "nqn": "nqn.2026-01.test:other"})
        code, checks = report(second, "-n", first.api)
        assert code == 1
        assert "share a serial or an NQN" in checks["duplicate-xdp7"]["text"]
        shown = run_cli("--host", second.api, "doctor", "-n", first.api)
        assert shown.returncode == 1
        for word in ("duplicate-xdp7", "what to do", "not ready"):
            assert word in shown.stdout


def test_docker_where_it_is_chosen(tmp_path: Path) -> None:
    docker = tmp_path / "docker.sock"
    with DockerServer(docker, Engine(tmp_path, {"etcd:v3.5.30": Path("/bin/true")})):
        found = check_docker(docker, "etcd:v3.5.30")
        assert (found.result, found.remedy) == ("ok", ""), found
        missing = check_docker(docker, "etcd:v9")
        assert missing.result == "failed"
        assert "docker load" in missing.remedy
    away = check_docker(tmp_path / "no.sock", "etcd:v3.5.30")
    assert away.result == "failed"
    assert "AWC_ETCD_RUNNER=process" in away.remedy
