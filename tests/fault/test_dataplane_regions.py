"""Registered memory and the real dataplane: clients die, shrink files or change bytes in mid-transfer."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import Client, Got, Status
from tests.support.addresses import LoopbackNet
from tests.support.dataplane import Dataplane, TestCard
from tests.support.procs import ROOT, python_environment, wait_until
from tests.support.softcard import Card

MIB = 1 << 20
FILE_BYTES = 4 * MIB
HEADER = struct.Struct("<IIHHIQQ")
MAGIC = 0x31564B41

# Begins transfers in a region on a card that does not answer, and says so.
DYING_CLIENT = """
import sys, threading, os, time
from integration.client import Client, ClientConfig
client = Client(ClientConfig(socket=sys.argv[1], arena_bytes=0, timeout=60))
assert client.wait_connected(10)
descriptor = os.memfd_create("region")
os.truncate(descriptor, 8 << 20)
region = client.register(descriptor)
assert region.registered
blocks = [region.block(at << 20, 1 << 20) for at in range(8)]
keys = [os.urandom(32) for _ in blocks]
threading.Thread(target=client.put, args=(keys[:4], blocks[:4], 1), daemon=True).start()
threading.Thread(target=client.get, args=(keys[4:], blocks[4:], 1), daemon=True).start()
while client.stats()["gets"] + client.stats()["puts"] < 8:
    time.sleep(0.01)
print("transferring", flush=True)
time.sleep(600)
"""


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("region")
    os.truncate(descriptor, FILE_BYTES)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    with Card(tmp_path_factory.mktemp("card"), LoopbackNet.pick().host(2)) as running:
        yield running


@pytest.fixture(scope="module")
def dataplane(tmp_path_factory: pytest.TempPathFactory, card: Card) -> Iterator[Dataplane]:
    directory = tmp_path_factory.mktemp("dataplane")
    with Dataplane(directory, storage_backend="kv-nvme", io_timeout_ms=3000) as process:
        process.apply([TestCard.of(card)])
        process.wait_active({card.serial}, 20)
        yield process


@pytest.fixture
def client(dataplane: Dataplane, card: Card) -> Iterator[Client]:
    dataplane.wait_active({card.serial}, 20)
    with dataplane.client(arena_bytes=0) as made:
        assert made.wait_connected(10), made.last_error
        yield made
        check(made)


def check(client: Client) -> None:
    """The session works."""
    key, payload = os.urandom(32), os.urandom(5000)
    wait_until(lambda: client.put([key], [payload], 1) == [Status.OK], "a stored block")
    buffer = bytearray(5000)
    assert client.get([key], [buffer], 1) == [Got(Status.OK, 5000)]
    assert bytes(buffer) == payload


@pytest.mark.parametrize("length", [1, 4097, MIB])
def test_what_was_put_from_a_region_is_got_into_it(client: Client, memory: int, length: int) -> None:
    region = client.register(memory)
    assert region.registered, client.last_error
    source, into = region.block(1, length), region.block(2 * MIB, length)
    payload = os.urandom(length)
    source.view[:] = payload
    key = os.urandom(32)
    assert client.put([key], [source], 7) == [Status.OK]
    assert client.get([key], [into], 7) == [Got(Status.OK, length)]
    assert bytes(into.view) == payload
    assert client.unregister(region)


def test_bytes_that_change_under_a_put_are_never_a_wrong_block(client: Client, memory: int) -> None:
    """Whatever comes back was in the memory as a whole at one time, or nothing does."""
    region = client.register(memory)
    source, into = region.block(0, MIB), region.block(MIB, MIB)
    done = threading.Event()

    def change() -> None:
        number = 0
        while not done.is_set():
            number = (number + 1) % 256
            source.view[:] = bytes([number]) * MIB

    writer = threading.Thread(target=change)
    writer.start()
    hits = 0
    try:
        for _ in range(60):
            key = os.urandom(32)
            assert client.put([key], [source], 7) == [Status.OK]
            [got] = client.get([key], [into], 7)
            assert got.status in {Status.OK, Status.MISS}
            hits += got.status == Status.OK
    finally:
        done.set()
        writer.join()
    assert client.stats()["miss_payload_crc"] == 60 - hits


def test_a_client_killed_in_mid_transfer_keeps_its_memory_mapped_until_the_card_lets_go(
    dataplane: Dataplane, card: Card, client: Client
) -> None:
    card.suspend()
    try:
        command = [sys.executable, "-c", DYING_CLIENT, str(dataplane.client_socket)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=python_environment(), cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"transferring\n"
            process.send_signal(signal.SIGKILL)
        dataplane.wait_counter("sessions", 1)
        assert dataplane.counter("region_bytes") == 8 * MIB
    finally:
        card.resume()
    dataplane.wait_counter("region_bytes", 0, 20)
    dataplane.wait_active({card.serial}, 20)


class RawSession:
    """A session with one region that this process does not map: shrinking its file can't harm the test."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        hello = struct.pack("<HHIQ", 1, 1, 2, 0) + bytes(64) + struct.pack("<H", 1) + b"r"
        assert self.call(1, hello, 0)[0] == 0x8001
        register = struct.pack("<QQ", 0, FILE_BYTES)
        socket.send_fds(self._socket, [HEADER.pack(MAGIC, 16, 9, 0, 1, 1, 0)], [descriptor])
        self._socket.sendall(register)
        assert self._reply()[0] == 0x8009

    def __enter__(self) -> RawSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def call(self, opcode: int, body: bytes, count: int) -> tuple[int, bytes]:
        """Opcode and body of the reply."""
        self._socket.sendall(HEADER.pack(MAGIC, len(body), opcode, 0, count, 1, 1) + body)
        return self._reply()

    def _reply(self) -> tuple[int, bytes]:
        _, size, opcode, *_ = HEADER.unpack(self._exactly(HEADER.size))
        return opcode, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the gateway hung up without a word"
            data += part
        return data

    def move_until_it_ends(self, until: threading.Event) -> bool:
        """PUTs and GETs of half a MiB each; true when the gateway ended the session because of the file."""
        entries = b"".join(
            os.urandom(32) + struct.pack("<QIHH", at << 19, 1 << 19, 1, 0) for at in range(FILE_BYTES >> 19)
        )
        while not until.is_set():
            for opcode in (4, 5):
                answer, body = self.call(opcode, entries, FILE_BYTES >> 19)
                if answer == 0xFFFF:
                    assert b"shorter than it was registered" in body
                    return True
        return False


@contextlib.contextmanager
def shrinking(descriptor: int) -> Iterator[None]:
    """The file becomes shorter and as long as before, all the time."""
    done = threading.Event()
    source = random.Random(5)

    def change() -> None:
        while not done.wait(source.random() / 100):
            os.truncate(descriptor, source.choice([0, MIB, 2 * MIB + 100]))
            os.truncate(descriptor, FILE_BYTES)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("place", ["memfd", "file"])
def test_files_that_shrink_in_mid_transfer_end_their_own_sessions_only(
    dataplane: Dataplane, client: Client, memory: int, place: str
) -> None:
    before = dataplane.counter("regions_broken")
    [card_before] = dataplane.status().cards
    stop = threading.Event()
    ended: list[bool] = []

    def sessions(descriptor: int) -> None:
        while not stop.is_set():
            with RawSession(dataplane.client_socket, descriptor) as session, shrinking(descriptor):
                ended.append(session.move_until_it_ends(stop))

    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(FILE_BYTES)
        thread = threading.Thread(target=sessions, args=(memory if place == "memfd" else file.fileno(),))
        thread.start()
        try:
            wait_until(lambda: len(ended) >= 12, "sessions that ended", 30)
            check(client)
        finally:
            stop.set()
            thread.join()
    assert sum(ended) >= 11
    assert dataplane.counter("regions_broken") - before == sum(ended)
    assert client.counters.get("sessions_lost", 0) == 0
    dataplane.wait_counter("region_bytes", 0)
    [card_after] = dataplane.status().cards
    assert card_after.active
    assert card_after.reconnects == card_before.reconnects, "its connection did not suffer"
