"""The doctor's checks, each with what is well and with what is not, and a remedy for all that is not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from akv.v1 import cluster_pb2 as pb

from controlplane.base.addresses import HostPort
from controlplane.base.request_errors import InvalidRequest
from controlplane.cluster.doctor_local import (
    check_answers,
    check_disk,
    check_etcd,
    check_port,
    judge_latency,
    judge_room,
)
from controlplane.cluster.doctor_peers import check_peer, judge_clock, judge_names
from controlplane.cluster.doctor_report import Finding
from tests.support.addresses import LoopbackNet, free_port

PLACE = Path("/var/lib/etcd")


def told(finding: Finding) -> tuple[str, str]:
    """The result, and the remedy: there is one for all that is not well, and for nothing else."""
    assert bool(finding.remedy) == (finding.result in {"failed", "warning"}), finding
    return finding.result, finding.remedy


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_is_free_taken_or_at_an_address_of_another_machine(loopback_net: LoopbackNet) -> None:
    host = loopback_net.host(1)
    assert told(check_port("port-2379", HostPort(host, free_port(host)), "etcd clients"))[0] == "ok"
    with listening(host) as port:
        result, remedy = told(check_port("port-2379", HostPort(host, port), "etcd clients"))
    assert (result, "ss -ltnp" in remedy) == ("failed", True)
    result, remedy = told(check_port("port-2379", HostPort("192.0.2.1", 2379), "etcd clients"))
    assert (result, "correct AWC_ADDRESS" in remedy) == ("failed", True)


def test_prometheus_and_the_exporters_answer_or_not(loopback_net: LoopbackNet) -> None:
    host = loopback_net.host(1)

    def check(port: int) -> Finding:
        return asyncio.run(check_answers("prometheus", f"{host}:{port}", "Prometheus", "start Prometheus"))

    with listening(host) as port:
        assert told(check(port))[0] == "ok"
    assert told(check(free_port(host))) == ("warning", "start Prometheus")


def test_room_and_speed_of_the_disk() -> None:
    assert told(judge_room(PLACE, 4 << 30))[0] == "ok"
    assert told(judge_room(PLACE, (4 << 30) - 1)) == ("warning", "free 4 GiB, or move AWC_DATA_DIR")
    results = [told(judge_latency(PLACE, ms))[0] for ms in (10.0, 10.1, 100.0, 100.1)]
    assert results == ["ok", "warning", "warning", "failed"]


def test_a_disk_that_is_measured_and_one_that_can_not_be_written(tmp_path: Path) -> None:
    assert [finding.name for finding in check_disk(tmp_path / "etcd")] == ["disk-space", "disk-latency"]
    assert not list(tmp_path.iterdir()), "nothing is left"
    (finding,) = check_disk(Path("/proc/etcd"))
    assert (told(finding)[0], "can't be written" in finding.text) == ("failed", True)


def etcd_of(directory: Path, version: str) -> Path:
    program = directory / "etcd"
    program.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_the_etcd_that_would_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, old = etcd_of(tmp_path, "3.5.30"), tmp_path / "old"
    old.mkdir()
    bad = etcd_of(old, "3.5.1")
    assert told(check_etcd(good))[0] == "ok"
    result, remedy = told(check_etcd(bad))
    assert (result, "AWC_ETCD_BINARY" in remedy) == ("failed", True)
    assert told(check_etcd(tmp_path / "none"))[0] == "failed"
    monkeypatch.setenv("PATH", str(old))
    passed_over = check_etcd(None)
    assert (told(passed_over)[0], "passed over" in passed_over.text) == ("warning", True)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    result, remedy = told(check_etcd(None))
    assert (result, "install etcd" in remedy) == ("failed", True), "no apt-get to unpack one with either"


@pytest.mark.parametrize(
    ("difference", "round_trip", "result"),
    [
        (0.9, 0.0, "ok"),
        (-1.2, 0.3, "ok"),  # what the call took may be all of it
        (1.2, 0.1, "warning"),
        (-30.2, 0.1, "failed"),
        (30.2, 0.1, "failed"),
    ],
)
def test_clocks(difference: float, round_trip: float, result: str) -> None:
    found = judge_clock("storage-2", difference, round_trip)
    assert found.name == "clock-storage-2"
    assert (told(found)[0], "chrony" in found.remedy) == (result, result != "ok")


def test_names_are_to_be_found_on_both_hosts() -> None:
    assert told(judge_names("storage-1", "storage-2", ["192.0.2.2"], ["192.0.2.1"]))[0] == "ok"
    found = judge_names("storage-1", "storage-2", [], ["192.0.2.1"])
    assert (told(found)[0], "storage-2 on this host" in found.text) == ("warning", True)
    found = judge_names("storage-1", "storage-2", ["192.0.2.2"], [])
    assert (told(found)[0], "storage-1 on storage-2" in found.text) == ("warning", True)


async def test_a_peer_tells_what_it_reaches_what_it_resolves_and_its_time(loopback_net: LoopbackNet) -> None:
    host = loopback_net.host(1)
    closed = f"{host}:{free_port(host)}"
    with listening(host) as port:
        request = pb.CheckPeerRequest(host="localhost", endpoints=[f"{host}:{port}", closed])
        answer = await check_peer("storage-2", request)
    assert [entry.endpoint for entry in answer.unreachable] == [closed]
    assert answer.unreachable[0].reason
    assert "127.0.0.1" in answer.resolved
    assert answer.time > 0
    nobody = await check_peer("storage-2", pb.CheckPeerRequest(host="nobody.invalid"))
    assert list(nobody.resolved) == []


@pytest.mark.parametrize("endpoints", [["storage-1"], ["a:b"], ["127.0.0.1:1"] * 9])
async def test_a_peer_is_no_port_scanner(endpoints: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        await check_peer("storage-2", pb.CheckPeerRequest(host="storage-1", endpoints=endpoints))
