"""Garbage on the cluster port: other calls go on, and neither descriptors nor memory are left behind."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from akv.v1 import cluster_pb2, cluster_pb2_grpc

from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import API_PORT, ClusterHost, ask_members, cli_json, cluster_hosts
from tests.support.procs import wait_until

pytestmark = pytest.mark.slow

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
CONNECTIONS = 40
MEMORY_SLACK = 64 << 20


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHost]:
    with cluster_hosts(tmp_path_factory.mktemp("garbage"), LoopbackNet.pick(), 1) as hosts:
        cli_json(hosts[0], "create_cluster", "--name", "kv-cache")
        yield hosts[0]


def frame(length: int, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", length)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def random_bytes(source: random.Random) -> bytes:
    return source.randbytes(source.randint(1, 5000))


def huge_length(source: random.Random) -> bytes:
    return PREFACE + SETTINGS + frame(0xFFFFFF, source.randint(0, 9), 0, 1, source.randbytes(100))


def half_frame(source: random.Random) -> bytes:
    return (PREFACE + SETTINGS + frame(200, 1, 4, 1, source.randbytes(200)))[: source.randint(1, 200)]


def bad_headers(source: random.Random) -> bytes:
    return PREFACE + SETTINGS + frame(60, 1, 5, 1, source.randbytes(60))


def window_overflow(_source: random.Random) -> bytes:
    return PREFACE + SETTINGS + frame(4, 8, 0, 0, b"\x7f\xff\xff\xff") * 3


def wrong_streams(source: random.Random) -> bytes:
    return PREFACE + SETTINGS + b"".join(frame(8, 0, 0, n, source.randbytes(8)) for n in (0, 2, 2**31 - 1))


KINDS = (random_bytes, huge_length, half_frame, bad_headers, window_overflow, wrong_streams)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def throw(host: ClusterHost, kind: Callable[[random.Random], bytes], source: random.Random) -> None:
    """Send one kind on many connections; some are read from, some reset, some closed at once."""
    for number in range(CONNECTIONS):
        with socket.create_connection((host.address, API_PORT), timeout=5) as connection:
            with contextlib.suppress(OSError):  # the server may close while we still send
                connection.sendall(kind(source))
            if number % 3 == 0:
                connection.settimeout(0.02)
                with contextlib.suppress(OSError):  # an answer, the end, a reset, or nothing for now
                    connection.recv(65536)
            if number % 3 == 1:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_harms_no_other_call_and_leaks_nothing(
    host: ClusterHost, kind: Callable[[random.Random], bytes]
) -> None:
    source = random.Random(7)
    throw(host, kind, source)
    pid = host.running.pid
    before, memory = descriptors(pid), resident(pid)
    for _ in range(3):
        throw(host, kind, source)
        assert ask_members(host)["members"], "another session goes on"
    wait_until(lambda: descriptors(pid) <= before + 2, "descriptors are given back")
    assert resident(pid) < memory + MEMORY_SLACK
    assert host.running.returncode is None


def test_half_open_connections_are_closed_by_the_server(host: ClusterHost) -> None:
    pid = host.running.pid
    wait_until(lambda: ask_members(host)["members"], "the service answers")
    before = descriptors(pid)
    silent = [socket.create_connection((host.address, API_PORT), timeout=5) for _ in range(CONNECTIONS)]
    try:
        assert ask_members(host)["members"], "another session goes on"
        wait_until(lambda: descriptors(pid) <= before + 2, "the server gives up on them")
    finally:
        for connection in silent:
            connection.close()


def test_an_oversized_request_is_refused_and_the_session_goes_on(host: ClusterHost) -> None:
    with grpc.insecure_channel(host.api) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        for size, code in (
            (1 << 20, grpc.StatusCode.INVALID_ARGUMENT),
            (5 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                stub.RemoveNode(cluster_pb2.RemoveNodeRequest(host="x" * size), timeout=5)
            assert isinstance(refused.value, grpc.Call)
            assert refused.value.code() is code
            assert len(refused.value.details() or "") < 4096, "the refusal does not send it all back"
        assert stub.GetMembers(cluster_pb2.GetMembersRequest(), timeout=5).members


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": ""}, "host name"),
        ({"host": "../etc"}, "host name"),
        ({"client_url": "ftp://127.0.0.1:1"}, "LOOPBACK"),
        (
            {"peer_url": "http://192.0.2.1:2380", "addresses": {"etcd_peer": "http://192.0.2.1:2380"}},
            "LOOPBACK",
        ),
        ({"peer_url": "http://127.0.0.1", "addresses": {"etcd_peer": "http://127.0.0.1"}}, "not an etcd URL"),
        ({"addresses": {}}, "two different"),
        ({"addresses": {str(n): "x" for n in range(20)}}, "too many"),
        ({"addresses": {"etcd_peer": "x" * 300}}, "too long"),
    ],
)
def test_a_join_request_is_checked(host: ClusterHost, change: dict[str, object], words: str) -> None:
    peer = "http://127.0.0.1:2380"
    fields: dict[str, object] = {
        "host": "joiner",
        "client_url": "http://127.0.0.1:2379",
        "peer_url": peer,
        "addresses": {"etcd_peer": peer},
    }
    request = cluster_pb2.JoinClusterRequest(**(fields | change))  # type: ignore[arg-type]
    with grpc.insecure_channel(host.api) as channel:
        stub = cluster_pb2_grpc.ClusterServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.JoinCluster(request, timeout=5)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (refused.value.details() or "")
