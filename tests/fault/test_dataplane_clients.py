"""Clients that die, stall or send garbage: no other session notices, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import Client, Status
from tests.support.addresses import LoopbackNet
from tests.support.dataplane import Dataplane, TestCard
from tests.support.procs import PATIENCE, ROOT, python_environment, wait_until
from tests.support.softcard import Card

HEADER = struct.Struct("<IIHHIQQ")
MAGIC = 0x31564B41
MIB = 1 << 20

# Leases blocks and says so; on a word it begins transfers, which a card need not answer, and says so.
DYING_CLIENT = """
import sys, threading, os, time
from integration.client import Client, ClientConfig
client = Client(ClientConfig(socket=sys.argv[1], arena_bytes=16 << 20, timeout=60))
assert client.wait_connected(30)
blocks = client.alloc(8, 1 << 20)
keys = [os.urandom(32) for _ in blocks]
half = len(blocks) // 2
print("leased", flush=True)
sys.stdin.readline()
threading.Thread(target=client.put, args=(keys[:half], blocks[:half], 1), daemon=True).start()
threading.Thread(target=client.get, args=(keys[half:], blocks[half:], 1), daemon=True).start()
while client.stats()["gets"] + client.stats()["puts"] < 8:
    time.sleep(0.01)
print("transferring", flush=True)
time.sleep(600)
"""


# Borrows a block, says so, and never returns it.
BORROWER = """
import os, sys, time
from integration.client import connect
client = connect(socket=sys.argv[1], wait=30, timeout=60)
key, block = os.urandom(32), bytearray(10000)
client.put([key], [block], 1)
client.get([key], [block], 1)
views = client.borrow([key], 1)
print(len(views[0]), flush=True)
time.sleep(600)
"""


def next_line(process: subprocess.Popen[str]) -> str:
    """What the process says next, one line at a time; it is ended when it says nothing for too long."""
    assert process.stdout is not None
    silence = threading.Timer(PATIENCE, process.kill)
    silence.start()
    try:
        return process.stdout.readline().rstrip("\n")
    finally:
        silence.cancel()


@contextlib.contextmanager
def dying_client(dataplane: Dataplane) -> Iterator[subprocess.Popen[str]]:
    """It has leased its blocks, and is killed at the end."""
    command = [sys.executable, "-c", DYING_CLIENT, str(dataplane.client_socket)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=python_environment(), cwd=ROOT
    ) as process:
        try:
            assert next_line(process) == "leased"
            yield process
        finally:
            process.kill()


def transfer(process: subprocess.Popen[str]) -> None:
    """Until its transfers are under way."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert next_line(process) == "transferring"


@pytest.fixture(scope="module")
def dataplane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataplane]:
    with Dataplane(tmp_path_factory.mktemp("dataplane"), lend_cached_blocks=True) as process:
        process.apply([TestCard("M0"), TestCard("M1")])
        yield process


@pytest.fixture
def witness(dataplane: Dataplane) -> Iterator[Client]:
    """A well-behaved session beside the others; it must work at the end of each test."""
    with dataplane.client(socket=None) as client:
        assert client.wait_connected(30)
        yield client
        check(client)


def check(client: Client) -> None:
    key, payload = os.urandom(32), os.urandom(5000)
    assert client.put([key], [payload], 1) == [Status.OK]
    buffer = bytearray(5000)
    assert client.get([key], [buffer], 1)[0].status == Status.OK
    assert bytes(buffer) == payload


def connect(dataplane: Dataplane) -> socket.socket:
    sock = socket.create_connection((dataplane.host, dataplane.port), timeout=PATIENCE)
    sock.settimeout(PATIENCE)
    return sock


def hello() -> bytes:
    body = struct.pack("<HHIQ", 1, 1, 0, 0) + bytes(64) + struct.pack("<H", 1) + b"g"
    return HEADER.pack(MAGIC, len(body), 1, 0, 0, 1, 0) + body


def greeted(dataplane: Dataplane) -> socket.socket:
    sock = connect(dataplane)
    sock.sendall(hello())
    assert len(sock.recv(4096)) == HEADER.size + 80
    return sock


def drained(sock: socket.socket) -> None:
    """Until the gateway hangs up."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass


def test_what_a_killed_client_borrowed_comes_back(dataplane: Dataplane, witness: Client) -> None:
    command = [sys.executable, "-c", BORROWER, str(dataplane.client_socket)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=python_environment(), cwd=ROOT
    ) as borrower:
        try:
            assert next_line(borrower) == "10000"
            assert dataplane.counter("borrowed_bytes") == 3 * 4096
        finally:
            borrower.kill()
    dataplane.wait_counter("borrowed_bytes", 0)


def test_garbage_leaves_nothing_behind(dataplane: Dataplane, witness: Client) -> None:
    source = random.Random(5)
    kinds = [
        lambda: source.randbytes(source.randint(1, 4000)),
        lambda: HEADER.pack(MAGIC, 0xFFFFFFFF, 4, 0, 1, 1, 0),
        lambda: hello() + HEADER.pack(MAGIC, 0xFFFFFFFF, 4, 0, 0xFFFFFFFF, 1, 0),
        lambda: hello() + HEADER.pack(MAGIC, 10_000, 4, 0, 4096, 1, 0) + source.randbytes(10_000),
        lambda: hello() + source.randbytes(20_000),
        lambda: hello()[: source.randint(0, 60)],
        lambda: hello() + HEADER.pack(MAGIC, 30 * MIB, 4, 0, 1, 1, 0) + bytes(70_000),
    ]

    def round_of_garbage() -> None:
        for number in range(140):
            with connect(dataplane) as sock, contextlib.suppress(ConnectionError, TimeoutError):
                sock.sendall(kinds[number % len(kinds)]())
                if number % 3 == 0:
                    sock.shutdown(socket.SHUT_WR)
                    drained(sock)
        dataplane.wait_counter("sessions", 1)

    round_of_garbage()
    descriptors, memory = dataplane.descriptors(), dataplane.resident_bytes()
    for _ in range(3):
        round_of_garbage()
        check(witness)
    wait_until(lambda: dataplane.descriptors() <= descriptors, "descriptors are given back")
    assert dataplane.resident_bytes() < memory + 4 * MIB
    assert dataplane.counter("inline_bytes") == dataplane.counter("arena_bytes") == 0


def test_a_thousand_connections_leave_nothing_behind(dataplane: Dataplane, witness: Client) -> None:
    for _ in range(100):
        greeted(dataplane).close()
    dataplane.wait_counter("sessions", 1)
    descriptors, memory = dataplane.descriptors(), dataplane.resident_bytes()
    for _ in range(1000):
        greeted(dataplane).close()
    dataplane.wait_counter("sessions", 1)
    wait_until(lambda: dataplane.descriptors() <= descriptors, "descriptors are given back")
    assert dataplane.resident_bytes() < memory + 2 * MIB


def test_half_open_connections_do_not_stay(dataplane: Dataplane, witness: Client) -> None:
    """Neither a byte before HELLO nor none keeps a connection longer than HELLO may take."""
    silent = [connect(dataplane) for _ in range(20)]
    for number, sock in enumerate(silent):
        if number % 2:
            sock.sendall(hello()[:10])
    check(witness)
    started = time.monotonic()
    for sock in silent:
        drained(sock)
        sock.close()
    # Each is hung up on 5 s after it came, without any help of ours.
    assert time.monotonic() - started < PATIENCE
    dataplane.wait_counter("sessions", 1)


def test_a_client_that_never_reads_holds_up_nobody(dataplane: Dataplane, witness: Client) -> None:
    """It asks for far more than it reads: the gateway stops taking its requests, at bounded memory."""
    key = os.urandom(32)
    assert witness.put([key], [os.urandom(MIB)], 1) == [Status.OK]
    before = dataplane.resident_bytes()
    lazy = greeted(dataplane)
    lazy.setblocking(False)
    entry = key + struct.pack("<QIHH", 0, MIB, 0xFFFF, 0)
    requests = b"".join(HEADER.pack(MAGIC, 48, 5, 0, 1, n, 1) + entry for n in range(2000))
    with contextlib.suppress(BlockingIOError):
        while requests:
            requests = requests[lazy.send(requests) :]
    for _ in range(20):
        check(witness)
    assert dataplane.resident_bytes() < before + 64 * MIB
    lazy.close()
    dataplane.wait_counter("sessions", 1)
    dataplane.wait_counter("inline_bytes", 0)


def test_leases_of_a_killed_client_come_back(dataplane: Dataplane, witness: Client) -> None:
    with dying_client(dataplane) as process:
        transfer(process)
        assert dataplane.counter("leased_bytes") == 8 * MIB
    dataplane.wait_counter("leased_bytes", 0)
    dataplane.wait_counter("arena_bytes", 0)


def test_a_client_killed_in_mid_transfer_gives_its_memory_back(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    """While the card may still write, the memory stays; then it is free, and the next client works."""
    with (
        Card(tmp_path, loopback_net.host(2)) as card,
        Dataplane(
            tmp_path / "dp", loopback_net, storage_backend="kv-nvme", io_timeout_ms=30_000
        ) as dataplane,
    ):
        dataplane.apply([TestCard.of(card)])
        with dying_client(dataplane) as process:
            # From here on a keep-alive's time, after which the card would be given up and the memory free.
            card.suspend()
            transfer(process)
        dataplane.wait_counter("sessions", 0)
        assert dataplane.counter("leased_bytes") == 8 * MIB
        card.resume()
        dataplane.wait_counter("leased_bytes", 0)
        dataplane.wait_counter("arena_bytes", 0)
        dataplane.wait_active({card.serial})
        with dataplane.client() as client:
            assert client.wait_connected(30)
            wait_until(lambda: client.put([bytes(32)], [b"x"], 1) == [Status.OK], "a stored block")


def test_when_no_descriptor_is_left_sessions_go_on_and_new_ones_come_later(tmp_path: Path) -> None:
    dataplane = Dataplane(tmp_path)
    with dataplane:
        dataplane.apply([TestCard("M0")])
        with dataplane.client() as client:
            assert client.wait_connected(30)
            room = dataplane.descriptors() + 10
            resource.prlimit(dataplane.running.pid, resource.RLIMIT_NOFILE, (room, room))
            flood = [connect(dataplane) for _ in range(40)]
            dataplane.running.wait_event("accept_paused")
            check(client)
            time.sleep(0.7)  # some attempts more, each every 200 ms: they are not told again
            assert len(dataplane.running.events("accept_paused")) == 1
            for sock in flood:
                sock.close()
            with dataplane.client(socket=None) as late:
                assert late.wait_connected(30)
                check(late)
