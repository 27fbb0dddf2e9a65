"""What a software card must outlive: garbage, wrong digests, hosts that hang or are killed."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import nvme_tcp as nvme
from tests.support.addresses import LoopbackNet
from tests.support.nvme_tcp import Host
from tests.support.nvme_wire import CMD, DDGST, H2C_DATA, ICREQ, LAST, R2T, Options, Terminated, Wire
from tests.support.procs import wait_until
from tests.support.softcard import Card

MIB = 1 << 20
LIMITS = ("--max-connections", "40", "--handshake-timeout-ms", "1000", "--stall-timeout-ms", "1000")


class Witness(threading.Thread):
    """Another host's connection that stores and reads all the while; any hiccup is an error."""

    def __init__(self, card: Card) -> None:
        super().__init__(daemon=True)
        self.host = card.host(Options(timeout=5.0))
        self.queue = self.host.queue()
        self.rounds = 0
        self.error: Exception | None = None
        self._stop_requested = threading.Event()

    def run(self) -> None:
        source = random.Random(5)
        try:
            while not self._stop_requested.is_set():
                value = source.randbytes(source.randrange(100_000))
                assert self.queue.store(b"witness", value).status == 0
                assert self.queue.retrieve(b"witness", 100_000).data == value
                self.rounds += 1
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def __enter__(self) -> Witness:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_requested.set()
        self.join(30)
        self.host.close()
        assert self.error is None, repr(self.error)
        assert self.rounds > 0


@pytest.fixture
def card(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    with Card(tmp_path / "cards", loopback_net.host(1), extra=LIMITS) as card:
        yield card


def header(kind: int, flags: int = 0, hlen: int = 24, pdo: int = 0, plen: int = 24) -> bytes:
    return struct.pack("<BBBBI", kind, flags, hlen, pdo, plen)


def greeted(card: Card) -> Wire:
    wire = Wire(card.address)
    wire.greet()
    return wire


def settle(card: Card, connections: int, descriptors: int) -> None:
    card.wait_connections(connections)
    wait_until(lambda: card.descriptors() == descriptors, f"{descriptors} descriptors")


class TestGarbage:
    def test_harms_nobody_and_leaks_nothing(self, card: Card) -> None:
        with Witness(card) as witness:
            wait_until(lambda: witness.rounds > 20, "the witness is warm")
            descriptors = card.descriptors()
            throw_garbage(card, 40, seed=1)
            settle(card, 2, descriptors)
            resident = card.resident_bytes()
            throw_garbage(card, 400, seed=2)
            settle(card, 2, descriptors)
            assert card.resident_bytes() < resident + 4 * MIB
            before = witness.rounds
            wait_until(lambda: witness.rounds > before + 5, "the witness goes on")

    @pytest.mark.parametrize(
        ("bytes_", "fes", "fei"),
        [
            (b"\xff" * 64, 1, 0),
            (header(R2T), 1, 0),
            (header(ICREQ, hlen=24), 1, 2),
            (header(ICREQ, hlen=128, plen=0xFFFFFFFF), 1, 4),
            (header(CMD, hlen=72, plen=72) + bytes(64), 2, 0),
            (header(ICREQ, hlen=128, plen=128) + struct.pack("<HBB116x", 1, 0, 0), 6, 8),
            (header(ICREQ, hlen=128, plen=128) + struct.pack("<HBB116x", 0, 32, 0), 1, 10),
        ],
    )
    def test_before_the_handshake(self, card: Card, bytes_: bytes, fes: int, fei: int) -> None:
        with Wire(card.address) as wire:
            wire.socket.sendall(bytes_)
            with pytest.raises(Terminated) as ended:
                wire.receive()
            assert (ended.value.fes, ended.value.fei) == (fes, fei)
            assert ended.value.header == bytes_[: len(ended.value.header)]
            with pytest.raises(EOFError):
                wire.receive()

    @pytest.mark.parametrize(
        ("bytes_", "fes", "fei"),
        [
            (header(ICREQ, hlen=128, plen=128) + bytes(120), 2, 0),
            (header(CMD, hlen=72, plen=72 + 8193, pdo=72), 1, 4),
            (header(CMD, hlen=72, plen=1 << 31, pdo=72), 1, 4),
            (header(CMD, hlen=72, plen=100, pdo=71), 1, 3),
            (header(CMD, hlen=72, plen=72, flags=1), 1, 1),
            (header(H2C_DATA, plen=24 + MIB + 4, pdo=24), 5, 4),
            (header(H2C_DATA, plen=28, pdo=24) + struct.pack("<HHII4x", 1, 9, 0, 4), 1, 10),
        ],
    )
    def test_after_the_handshake(self, card: Card, bytes_: bytes, fes: int, fei: int) -> None:
        with greeted(card) as wire:
            wire.socket.sendall(bytes_)
            with pytest.raises(Terminated) as ended:
                wire.receive()
            assert (ended.value.fes, ended.value.fei if fei else 0) == (fes, fei)

    @pytest.mark.parametrize(
        ("pdu", "length", "flags", "fes"),
        [
            ((0, 99, 0, 4096), 4096, 0, 1),  # another tag
            ((1, 0, 0, 4096), 4096, 0, 1),  # another command
            ((0, 0, 4096, 4096), 4096, 0, 4),  # not the next offset
            ((0, 0, 0, 4096), 4092, 0, 1),  # DATAL is not the length
            ((0, 0, 0, 65536), 65536, 0, 1),  # the last one without LAST
            ((0, 0, 0, 4096), 4096, LAST, 1),  # LAST before the end
            ((0, 0, 0, 65540), 65540, 0, 4),  # beyond the transfer
        ],
    )
    def test_wrong_h2c_data(
        self, card: Card, pdu: tuple[int, int, int, int], length: int, flags: int, fes: int
    ) -> None:
        with card.host() as host:
            queue = host.queue()
            cid = queue.submit(nvme.kv(0x01, b"key", 65536), in_capsule=False)
            asked = queue.wire.receive()
            assert asked.kind == R2T
            tag = struct.unpack_from("<H", asked.header, 10)[0]
            specific = struct.pack("<HHII4x", cid + pdu[0], tag + pdu[1], pdu[2], pdu[3])
            queue.wire.send(H2C_DATA, specific, bytes(length), flags)
            with pytest.raises(Terminated) as ended:
                queue.wire.receive()
            assert ended.value.fes == fes
            assert host.admin.identify(0x01).status == 0, "the admin queue lives"
        wait_until(lambda: card.stats()["receive_bytes"] == 0, "its memory came back")

    def test_more_commands_than_the_queue_holds(self, card: Card) -> None:
        with card.host() as host:
            queue = host.queue(sqsize=3)
            for _ in range(5):
                queue.submit(nvme.kv(0x01, b"key", 65536), in_capsule=False)
            for _ in range(4):
                assert queue.wire.receive().kind == R2T
            with pytest.raises(Terminated) as ended:
                queue.wire.receive()
            assert ended.value.fes == 2
        wait_until(lambda: card.stats()["receive_bytes"] == 0, "their memory came back")


class TestDigests:
    def test_a_wrong_header_digest_is_fatal(self, card: Card) -> None:
        options = Options(header_digest=True)
        with card.host(options) as host:
            options.corrupt = lambda kind, pdu: pdu[:20] + bytes([pdu[20] ^ 1]) + pdu[21:]
            with pytest.raises(Terminated) as ended:
                host.admin.identify(0x01)
            assert ended.value.fes == 3

    @pytest.mark.parametrize(("size", "in_capsule"), [(1000, True), (50_000, True), (50_000, False)])
    def test_a_wrong_data_digest_fails_its_command_alone(
        self, card: Card, size: int, in_capsule: bool
    ) -> None:
        options = Options(header_digest=True, data_digest=True)
        with card.host(options) as host:
            queue = host.queue()
            good = bytes(size)
            assert queue.store(b"key", good, in_capsule=in_capsule).status == 0
            options.corrupt = flip_last_data_byte
            assert queue.store(b"key", b"x" * size, in_capsule=in_capsule).code == 0x22
            unwanted = nvme.kv(0x01, b"key", size + 1, in_capsule=True)
            assert queue.command(unwanted, b"x" * size).code == 0x22
            options.corrupt = lambda kind, pdu: pdu
            assert queue.retrieve(b"key", size).data == good


def flip_last_data_byte(kind: int, pdu: bytes) -> bytes:
    has_data = pdu[1] & DDGST
    return pdu[:-5] + bytes([pdu[-5] ^ 0x80]) + pdu[-4:] if has_data else pdu


class TestHangingHosts:
    def test_half_open_connections_end(self, card: Card) -> None:
        descriptors = card.descriptors()
        idle = [socket.create_connection(card.address) for _ in range(10)]
        half = [socket.create_connection(card.address) for _ in range(10)]
        for connection in half:
            connection.sendall(header(ICREQ, hlen=128, plen=128) + bytes(50))
        no_connect = [greeted(card) for _ in range(10)]
        wait_until(lambda: card.stats()["accepted"] == 30, "all are accepted")
        for connection in (*idle, *half, *(wire.socket for wire in no_connect)):
            connection.settimeout(5)
            assert connection.recv(1) == b""
            connection.close()
        settle(card, 0, descriptors)

    def test_half_a_pdu_ends_its_connection_only(self, card: Card) -> None:
        with card.host() as host:
            stuck, slow, well = host.queue(), host.queue(), host.queue()
            stuck.wire.socket.sendall(header(CMD, hlen=72, plen=72) + bytes(30))
            store = nvme.kv(0x01, b"key", 200_000, in_capsule=True)
            slow.wire.socket.sendall(slow.wire.frame(CMD, store, bytes(200_000))[:-1])
            assert stuck.wire.socket.recv(1) == b""
            assert slow.wire.socket.recv(1) == b""
            assert well.exist(b"key") == nvme.KEY_ABSENT
        assert card.stats()["receive_bytes"] == 0

    @pytest.mark.parametrize("sent", [0, 1000])
    def test_data_that_never_comes(self, card: Card, sent: int) -> None:
        with card.host() as host:
            queue = host.queue()
            queue.submit(nvme.kv(0x01, b"key", 65536), in_capsule=False)
            asked = queue.wire.receive()
            cid, tag = struct.unpack_from("<HH", asked.header, 8)
            if sent:
                pdu = queue.wire.frame(H2C_DATA, struct.pack("<HHII4x", cid, tag, 0, 4096), bytes(4096))
                queue.wire.socket.sendall(pdu[:sent])
            with pytest.raises((EOFError, ConnectionError)):
                queue.wire.receive()
            assert host.queue().exist(b"key") == nvme.KEY_ABSENT
        wait_until(lambda: card.stats()["receive_bytes"] == 0, "its memory came back")

    def test_capsules_that_a_fault_holds_back_are_bounded(self, card: Card) -> None:
        """16 MiB of them for each connection, as of answers; then it is not read from."""
        size = MIB // 4
        card.fault("store", "delay", "ms=60000")
        with card.host() as host:
            queue, well = host.queue(), host.queue()
            store = nvme.kv(0x01, b"key", size, in_capsule=True)
            stores = [store[:2] + struct.pack("<H", cid) + store[4:] for cid in range(100)]
            left = memoryview(b"".join(queue.wire.frame(CMD, entry, bytes(size)) for entry in stores))
            queue.wire.socket.setblocking(False)

            def send_more() -> bool:
                nonlocal left
                with contextlib.suppress(BlockingIOError):
                    left = left[queue.wire.socket.send(left) :]
                return card.hits() == 65

            wait_until(send_more, "16 MiB and one capsule are held")
            assert well.exist(b"key") == nvme.KEY_ABSENT
            assert send_more(), "the rest waits in the sockets"

    def test_answers_that_nobody_takes(self, card: Card) -> None:
        with card.host() as host:
            queue, well = host.queue(), host.queue()
            well.store(b"big", bytes(MIB))
            for _ in range(40):
                queue.submit(nvme.kv(0x02, b"big", MIB))
            card.wait_connections(2, seconds=30)  # admin queue and the one that behaves
            assert well.retrieve(b"big", MIB).result == MIB

    def test_a_slow_reader_is_served_in_full(self, card: Card) -> None:
        """Output is bounded by pausing, and goes on when there is room; nothing is lost."""
        with card.host() as host:
            queue = host.queue()
            queue.store(b"big", random.Random(3).randbytes(2 * MIB))
            expected = queue.retrieve(b"big", 2 * MIB).data
            sent = [queue.submit(nvme.kv(0x02, b"big", 2 * MIB)) for _ in range(30)]
            answers = dict(queue.complete() for _ in sent)
            assert answers.keys() == set(sent)
            assert all(answer.data == expected for answer in answers.values())

    def test_more_connections_than_the_bound(self, card: Card) -> None:
        with Witness(card):
            extra = [socket.create_connection(card.address) for _ in range(60)]
            wait_until(lambda: card.stats()["refused"] >= 22, "the surplus is refused")
            assert card.stats()["connections"] <= 40
            for connection in extra:
                connection.close()
        with card.host() as host:
            assert host.queue().exist(b"key") == nvme.KEY_ABSENT


def throw_garbage(card: Card, count: int, seed: int) -> None:
    """Connections that send nonsense of many kinds; each is closed from here or by the card."""
    source = random.Random(seed)
    kinds: list[Callable[[], bytes]] = [
        lambda: source.randbytes(source.randrange(1, 3000)),
        lambda: header(
            source.randrange(12), source.randrange(16), 72, source.randrange(256), source.getrandbits(32)
        ),
        lambda: icreq() + source.randbytes(source.randrange(1, 3000)),
        lambda: icreq() + header(CMD, 0, 72, 72, 72 + 1024) + source.randbytes(source.randrange(1, 1200)),
        lambda: icreq() + header(CMD, 0, 72, 0, 72) + source.randbytes(64) + source.randbytes(90),
        lambda: icreq()[: source.randrange(1, 128)],
    ]
    for number in range(count):
        with socket.create_connection(card.address, timeout=5) as connection:
            try:
                connection.sendall(source.choice(kinds)())
                if number % 3 == 0:
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(4096)
            except ConnectionError:
                continue  # the card was quicker


def icreq() -> bytes:
    return header(ICREQ, hlen=128, plen=128) + bytes(120)


def test_a_host_killed_in_the_middle_leaves_nothing(card: Card) -> None:
    """Sockets reset with stores and retrieves under way, many times over."""
    with card.host() as keeper:
        assert keeper.queue().store(b"big", bytes(MIB)).status == 0
        descriptors = card.descriptors()
        for number in range(30):
            host = card.host()
            queue = host.queue()
            queue.submit(nvme.kv(0x02, b"big", MIB))
            queue.submit(nvme.kv(0x01, b"new", MIB), in_capsule=False)
            if number % 2:
                queue.wire.receive()
            reset(host)
        settle(card, 2, descriptors)
        assert card.stats()["receive_bytes"] == 0
        assert card.stats()["controllers"] == 1


def reset(host: Host) -> None:
    for queue in (*host.queues, host.admin):
        queue.wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        queue.wire.close()
