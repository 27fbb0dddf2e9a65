"""Values on the software card, for an initiator that shares no code with it, and the memory they take."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nvme_tcp as nvme
from tests.support.addresses import LoopbackNet
from tests.support.nvme_tcp import Host, Queue, sgl, sqe
from tests.support.nvme_wire import CMD, Options, Terminated
from tests.support.procs import wait_until
from tests.support.softcard import Card

DNR = 0x4000
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def card(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    with Card(tmp_path / "cards", loopback_net.host(1)) as card:
        yield card


@pytest.fixture
def host(card: Card) -> Iterator[Host]:
    with card.host() as host:
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.queue()


def payload(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def in_capsule_bytes(host: Host) -> int:
    units: int = struct.unpack_from("<I", host.admin.identify(0x01).data, 1792)[0]
    return units * 16 - 64


def memory_held(card: Card) -> int:
    """Of values being received, once the card has read what was sent before: in the turn of the first
    question at the latest."""
    card.stats()
    held: int = card.stats()["receive_bytes"]
    return held


def finish_later(card: Card, queue: Queue, entry: bytes, data: bytes) -> tuple[int, nvme.Completion]:
    """Send a command with its data but for the last byte, see what memory that takes, then the rest."""
    pdu = queue.wire.frame(CMD, entry, data)
    queue.wire.socket.sendall(pdu[:-1])
    held = memory_held(card)
    queue.wire.socket.sendall(pdu[-1:])
    return held, queue.complete()[1]


class TestKeyValue:
    @pytest.mark.parametrize(
        "size", [0, 1, 3, 4096, 8192, 8193, 16384, 65536, MIB, MIB + 1, 4 * MIB, 8 * MIB]
    )
    def test_store_and_retrieve(self, queue: Queue, size: int) -> None:
        value = payload(size)
        assert queue.store(b"key", value).status == 0
        answer = queue.retrieve(b"key", 8 * MIB)
        assert answer.result == size
        assert answer.data == value

    @pytest.mark.parametrize("size", [512, 8192, 16384])
    def test_small_stores_by_r2t(self, queue: Queue, size: int) -> None:
        """A transport SGL for what would fit in the capsule (the Linux target hangs here)."""
        value = payload(size)
        assert queue.store(b"key", value, in_capsule=False).status == 0
        assert queue.retrieve(b"key", size).data == value

    @pytest.mark.parametrize("digests", [False, True])
    def test_large_stores_in_the_capsule(self, card: Card, digests: bool) -> None:
        """Up to what Identify tells: a block of 256 KiB in its envelope. A byte more is fatal."""
        with card.host(Options(header_digest=digests, data_digest=digests)) as host:
            limit = in_capsule_bytes(host)
            assert limit == 260 * KIB
            queue = host.queue()
            for size in (16_385, 256 * KIB + 64, limit - 1, limit):
                value = payload(size, size)
                assert queue.store(b"key", value, in_capsule=True).status == 0
                assert queue.retrieve(b"key", limit).data == value
            assert queue.store(b"key", value, options=2, in_capsule=True).code == nvme.KEY_EXISTS
            with pytest.raises(Terminated) as ended:
                queue.store(b"key", bytes(limit + 1), in_capsule=True)
            assert (ended.value.fes, ended.value.fei) == (1, 4)

    def test_capsules_whose_data_nobody_wants_take_no_memory(self, card: Card, queue: Queue) -> None:
        size = 200 * KIB
        assert queue.store(b"key", b"old").status == 0
        cases = [
            (nvme.kv(0x14, b"key"), 0),
            (nvme.kv(0x02, b"none", 100), nvme.KEY_ABSENT),
            (nvme.kv(0x55, b"key"), 0x01 | DNR),
            (nvme.kv(0x01, b"", size, in_capsule=True), 0x86 | DNR),
            (nvme.kv(0x01, b"key", size - 1, in_capsule=True), 0x0F | DNR),
            (nvme.kv(0x01, b"key", size + 1, in_capsule=True), 0x0F | DNR),
            (nvme.kv(0x01, b"key", size), 0x0F | DNR),
            (sqe(0x01, nsid=1, data=sgl(nvme.IN_CAPSULE, 99), cdw=(size, 1)), 0x0F | DNR),
            (sqe(0x7F, nsid=1, data=sgl(nvme.IN_CAPSULE, size)), 0x0C | DNR),
        ]
        for entry, status in cases:
            held, answer = finish_later(card, queue, entry, bytes(size))
            assert (held, answer.status) == (0, status), entry.hex()
        held, answer = finish_later(card, queue, nvme.kv(0x01, b"key", size, in_capsule=True), bytes(size))
        assert (held, answer.status) == (size, 0), "this one is wanted"
        assert queue.retrieve(b"key", 2 * size).data == bytes(size)
        assert card.stats()["receive_bytes"] == 0

    def test_many_h2c_data_pdus_for_one_r2t(self, host: Host) -> None:
        queue = host.queue(Options(h2c_piece=8192))
        value = payload(MIB + 12345)
        assert queue.store(b"key", value).status == 0
        assert queue.retrieve(b"key", 2 * MIB).data == value

    @pytest.mark.parametrize(
        ("header", "data", "hpda"), [(True, False, 0), (False, True, 3), (True, True, 31)]
    )
    def test_digests_and_alignment(self, card: Card, header: bool, data: bool, hpda: int) -> None:
        with card.host(Options(header_digest=header, data_digest=data, hpda=hpda, h2c_piece=20_000)) as host:
            queue = host.queue()
            assert host.admin.identify(0x01).data[4:8] == b"L0P0"
            for size in (0, 5, 8192, 70_001):
                value = payload(size)
                assert queue.store(b"key", value).status == 0
                assert queue.retrieve(b"key", 100_000).data == value

    def test_a_host_that_pads_what_it_computes_digests_of(self, card: Card) -> None:
        """SPDK does, for lengths that are no multiple of four; it expects the same of the card."""
        options = Options(header_digest=True, data_digest=True, padded_digests=True, h2c_piece=20_001)
        with card.host(options) as host:
            queue = host.queue()
            for size in (5, 8191, 70_003):
                value = payload(size)
                assert queue.store(b"key", value).status == 0
                assert queue.retrieve(b"key", 100_000).data == value

    def test_short_buffers_get_the_first_part_and_the_size(self, queue: Queue) -> None:
        value = payload(100_000)
        queue.store(b"key", value)
        answer = queue.retrieve(b"key", 1000)
        assert (answer.result, answer.data) == (100_000, value[:1000])
        answer = queue.retrieve(b"key", 0)
        assert (answer.status, answer.result, answer.data) == (0, 100_000, b"")

    def test_exist_and_delete(self, queue: Queue) -> None:
        assert queue.exist(b"key") == nvme.KEY_ABSENT
        assert queue.delete(b"key") == nvme.KEY_ABSENT
        assert queue.retrieve(b"key", 10).code == nvme.KEY_ABSENT
        queue.store(b"key", b"value")
        assert queue.exist(b"key") == 0
        assert queue.exist(b"ke") == nvme.KEY_ABSENT
        assert queue.exist(b"key\0") == nvme.KEY_ABSENT, "length is part of a key"
        assert queue.delete(b"key") == 0
        assert queue.exist(b"key") == nvme.KEY_ABSENT

    def test_store_options(self, queue: Queue) -> None:
        only_if_there, only_if_new = 1, 2
        assert queue.store(b"key", b"1", options=only_if_there).code == nvme.KEY_ABSENT
        assert queue.store(b"key", b"2", options=only_if_new).status == 0
        assert queue.store(b"key", payload(50_000), options=only_if_new).code == nvme.KEY_EXISTS
        assert queue.store(b"key", b"3", options=only_if_there).status == 0
        assert queue.retrieve(b"key", 10).data == b"3"

    def test_list(self, queue: Queue) -> None:
        keys = sorted([b"a", b"ab", b"b" * 16, b"c", b"\xff" * 3])
        for key in keys:
            queue.store(key, b"x")
        assert queue.list_keys() == keys
        assert queue.list_keys(b"ab") == keys[1:]
        assert queue.list_keys(b"aa") == keys[1:]
        assert queue.list_keys(buffer=4 + 4 + 4) == keys[:2]
        assert queue.list_keys(buffer=4) == []

    @pytest.mark.parametrize(
        ("entry", "status"),
        [
            (nvme.kv(0x02, b"", 10), 0x86),
            (nvme.kv(0x02, b"k" * 16, 10)[:44] + b"\x11" + nvme.kv(0x02, b"k" * 16, 10)[45:], 0x86),
            (nvme.kv(0x14, b"k", nsid=2), 0x0B),
            (nvme.kv(0x14, b"k", nsid=0xFFFFFFFF), 0x0B),
            (nvme.kv(0x01, b"k", 8 * MIB + 1), 0x85),
            (nvme.kv(0x01, b"k", 0xFFFFFFFF), 0x85),
            (nvme.kv(0x02, b"k", 16 * MIB), 0x02),
            (nvme.kv(0x06, b"k", 3), 0x02),
            (sqe(0x02, nsid=1, data=sgl(nvme.TRANSPORT, 99), cdw=(100, 1)), 0x0F),
            (sqe(0x01, nsid=1, data=sgl(nvme.TRANSPORT, 99), cdw=(100, 1)), 0x0F),
            (sqe(0x01, nsid=1, data=sgl(nvme.IN_CAPSULE, 100), cdw=(100, 1)), 0x0F),
            (sqe(0x01, nsid=1, data=sgl(0x00, 100), cdw=(100, 1)), 0x11),
            (sqe(0x02, nsid=1, data=sgl(nvme.IN_CAPSULE, 100), cdw=(100, 1)), 0x11),
        ],
    )
    def test_bad_commands(self, queue: Queue, entry: bytes, status: int) -> None:
        assert queue.command(entry).status == status | DNR
        assert queue.exist(b"k") == nvme.KEY_ABSENT, "the queue serves on"

    def test_eviction_keeps_what_was_read(self, queue: Queue, card: Card) -> None:
        queue.store(b"hot", payload(MIB, 7))
        for number in range(200):
            assert queue.store(b"%d" % number, payload(MIB, number)).status == 0
            assert queue.retrieve(b"hot", 1).result == MIB
        stats = card.stats()
        assert stats["bytes"] <= stats["capacity"] == 64 * MIB
        assert stats["evictions"] == 201 - stats["keys"]
        assert queue.retrieve(b"hot", MIB).data == payload(MIB, 7)
        assert queue.exist(b"0") == nvme.KEY_ABSENT
        assert queue.retrieve(b"199", MIB).data == payload(MIB, 199)

    def test_deep_queues(self, queue: Queue) -> None:
        sizes = [random.Random(number).randrange(300_000) for number in range(64)]
        stores = {}
        for number, size in enumerate(sizes):
            entry = nvme.kv(0x01, b"k%d" % number, size)
            stores[queue.submit(entry, payload(size, number), in_capsule=False)] = number
        for _ in sizes:
            cid, answer = queue.complete()
            assert answer.status == 0, stores.pop(cid)
        reads = {queue.submit(nvme.kv(0x02, b"k%d" % n, 300_000)): n for n in range(len(sizes))}
        for _ in sizes:
            cid, answer = queue.complete()
            number = reads.pop(cid)
            assert answer.data == payload(sizes[number], number)

    def test_counters(self, queue: Queue, card: Card) -> None:
        queue.store(b"a", b"12345")
        queue.retrieve(b"a", 3)
        queue.retrieve(b"b", 3)
        queue.exist(b"a")
        queue.delete(b"a")
        queue.list_keys()
        stats = card.stats()
        del stats["commands"]["admin"]
        assert stats["commands"] == {"store": 1, "retrieve": 2, "exist": 1, "delete": 1, "list": 1}
        assert (stats["bytes_in"], stats["bytes_out"], stats["retrieve_misses"]) == (5, 3, 1)
        assert (stats["keys"], stats["bytes"], stats["receive_bytes"]) == (0, 0, 0)


def test_memory_for_stores_is_bounded(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    """R2Ts go out only as far as --receive-memory reaches; every store is served in the end."""
    extra = ("--receive-memory", "8M", "--max-value", "1M")
    with Card(tmp_path, loopback_net.host(1), extra=extra) as card, card.host() as host:
        queues = [host.queue(), host.queue()]
        for number in range(12):
            entry = nvme.kv(0x01, b"k%d" % number, MIB)
            queues[number % 2].submit(entry, payload(MIB, number), in_capsule=False)
        wait_until(lambda: card.stats()["receive_bytes"] == 4 * MIB, "each connection holds its share, 2 MiB")
        for number in range(12):
            assert queues[number // 6].complete()[1].status == 0
        assert all(
            queues[0].retrieve(b"k%d" % number, MIB).data == payload(MIB, number) for number in range(12)
        )
        assert card.stats()["receive_bytes"] == 0


def test_memory_for_capsules_is_bounded(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    """One capsule for each connection, counted to --receive-memory, however many are left half sent."""
    extra = ("--receive-memory", "1M", "--max-value", "512K", "--in-capsule", "1M")
    size = 512 * KIB
    with Card(tmp_path, loopback_net.host(1), extra=extra) as card, card.host() as host:
        assert in_capsule_bytes(host) == MIB
        stuck = [host.queue() for _ in range(8)]
        for queue in stuck:
            entry = nvme.kv(0x01, b"stuck", size, in_capsule=True)
            queue.wire.socket.sendall(queue.wire.frame(CMD, entry, bytes(size))[:-1])
        assert memory_held(card) == 8 * size
        with card.host(Options(timeout=20.0)) as other:
            queue = other.queue()
            for number in range(4):
                value = payload(size - number, number)
                assert queue.store(b"n%d" % number, value, in_capsule=number % 2 == 0).status == 0
                assert queue.retrieve(b"n%d" % number, size).data == value
            held, answer = finish_later(
                card, queue, nvme.kv(0x01, b"long", size + 16, in_capsule=True), bytes(size + 16)
            )
            assert (held, answer.status) == (8 * size, 0x85 | DNR), "longer than a value may be"
        stuck[0].wire.socket.sendall(b"\0")
        assert stuck[0].complete()[1].status == 0
        assert memory_held(card) == 7 * size
        for queue in stuck[1:]:
            queue.wire.close()
        wait_until(lambda: card.stats()["receive_bytes"] == 0, "their memory came back")


@pytest.mark.parametrize(
    ("command", "entry"),
    [("retrieve", nvme.kv(0x02, b"long", 1)), ("list", nvme.kv(0x06, b"", 8 * MIB))],
    ids=["retrieve", "list"],
)
def test_memory_for_answers_that_nobody_takes_is_bounded(
    tmp_path: Path, loopback_net: LoopbackNet, command: str, entry: bytes
) -> None:
    """What counts is what they hold, be they ever so short: looks at long values, lists of few keys."""
    extra = ("--file", str(tmp_path / "card.data"), "--file-readers", "2")
    with Card(tmp_path, loopback_net.host(1), capacity="256M", extra=extra) as card, card.host() as host:
        queue = host.queue(sqsize=1023)
        assert queue.store(b"long", payload(7 * MIB)).status == 0
        queue.wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        queue.submit(nvme.kv(0x02, b"long", 7 * MIB))
        before, counted = card.allocated_bytes(), card.stats()["commands"][command]
        for _ in range(120):
            queue.submit(entry)
        wait_until(lambda: card.stats()["commands"][command] >= counted + 120, "all were read", 30)
        wait_until(lambda: card.stats()["store_waiting"] == 0, "and all are answered")
        assert card.allocated_bytes() < before + 64 * MIB


def test_a_host_that_owes_data_keeps_nobody_waiting(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    extra = ("--receive-memory", "4M", "--max-value", "1M")
    with Card(tmp_path, loopback_net.host(1), extra=extra) as card, card.host() as host:
        silent = [host.queue() for _ in range(6)]
        for queue in silent:
            for number in range(4):
                queue.submit(nvme.kv(0x01, b"k%d" % number, MIB), bytes(MIB), in_capsule=False)
        wait_until(lambda: card.stats()["receive_bytes"] >= 4 * MIB, "all of the memory is promised")
        with card.host(Options(timeout=2.0)) as other:
            queue = other.queue()
            for number in range(5):
                assert queue.store(b"n%d" % number, payload(MIB, number)).status == 0
        waiting = silent[0].submit(nvme.kv(0x01, b"waits", MIB), in_capsule=False)
        wait_until(lambda: card.stats()["commands"]["store"] == 6 * 4 + 5 + 1, "the card has the last store")
        assert host.admin.command(sqe(0x08, cdw=(1 | waiting << 16,))).result == 0, (
            "aborted: it was not asked for"
        )
        assert silent[0].complete(waiting)[1].code == nvme.ABORTED
