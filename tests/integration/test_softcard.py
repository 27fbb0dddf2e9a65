"""The software card's identity, queues and administration, for an initiator that shares no code with it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nvme_tcp as nvme
from tests.support.addresses import LoopbackNet
from tests.support.nvme_tcp import Host, Queue, sgl, sqe
from tests.support.procs import wait_until
from tests.support.softcard import Card

DNR = 0x4000
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
MIB = 1 << 20


@pytest.fixture
def card(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    with Card(tmp_path / "cards", loopback_net.host(1), extra=("--uuid", UUID, "--max-queues", "4")) as card:
        yield card


@pytest.fixture
def host(card: Card) -> Iterator[Host]:
    with card.host() as host:
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.queue()


class TestIdentity:
    def test_capabilities_and_version(self, host: Host) -> None:
        cap = host.admin.property_get(0x00).result
        assert cap >> 43 & 1, "CAP.CSS tells of I/O command sets"
        assert cap & 0xFFFF == 1023
        assert host.admin.property_get(0x08).result == 0x00020000
        assert host.admin.property_get(0x14).result == 0x460061

    def test_controller(self, card: Card, host: Host) -> None:
        data = host.admin.identify(0x01).data
        assert len(data) == 4096
        assert data[4:24] == b"L0P0".ljust(20)
        assert data[76] & 2, "CMIC: many controllers"
        assert 4096 << data[77] >= 8 * MIB
        assert struct.unpack_from("<H", data, 78)[0] == host.cntlid
        assert data[111] == 1
        assert data[512:514] == b"\x66\x44"
        assert data[768:1024].rstrip(b"\0").decode() == card.nqn
        assert (struct.unpack_from("<I", data, 1792)[0] - 4) * 16 >= 8192
        assert struct.unpack_from("<I", data, 536)[0] == 1 | 1 << 20 | 1 << 21

    def test_namespaces(self, host: Host) -> None:
        assert struct.unpack_from("<3I", host.admin.identify(0x02).data) == (1, 0, 0)
        assert struct.unpack_from("<I", host.admin.identify(0x02, nsid=1).data) == (0,)
        assert struct.unpack_from("<I", host.admin.identify(0x07, csi=1).data) == (1,)
        assert struct.unpack_from("<Q", host.admin.identify(0x1C).data) == (2,)
        descriptors = host.admin.identify(0x03, nsid=1).data
        assert descriptors[:4] == b"\x03\x10\0\0"
        assert descriptors[4:20].hex() == UUID.replace("-", "")
        assert descriptors[20:26] == b"\x04\x01\0\0\x01\0"

    def test_key_value_namespace(self, host: Host) -> None:
        data = host.admin.identify(0x05, nsid=1, csi=1).data
        assert struct.unpack_from("<Q", data)[0] == 64 * MIB
        key_max, _, _, value_max = struct.unpack_from("<HBBI", data, 72)
        assert (key_max, value_max) == (16, 8 * MIB)
        assert host.admin.identify(0x06, csi=1).data == bytes(4096)
        assert host.admin.identify(0x08, nsid=1).data[14] == 1
        assert struct.unpack_from("<QQ", host.admin.identify(0x00, nsid=1).data) == (64 * MIB // 512,) * 2

    @pytest.mark.parametrize(
        ("cns", "nsid", "csi", "status"),
        [
            (0x05, 2, 1, 0x0B | DNR),
            (0x05, 1, 0, 0x02 | DNR),
            (0x03, 0, 0, 0x0B | DNR),
            (0x02, 0xFFFFFFFF, 0, 0x0B | DNR),
            (0x42, 1, 0, 0x02 | DNR),
        ],
    )
    def test_bad_identify(self, host: Host, cns: int, nsid: int, csi: int, status: int) -> None:
        assert host.admin.identify(cns, nsid, csi).status == status


class TestAdmin:
    def test_features(self, host: Host) -> None:
        admin = host.admin
        assert admin.command(sqe(0x09, cdw=(0x07, 0x00FF00FF))).result == 0x00030003
        assert admin.command(sqe(0x09, cdw=(0x07, 0x00010001))).result == 0x00010001
        assert admin.command(sqe(0x0A, cdw=(0x07,))).result == 0x00010001
        assert admin.command(sqe(0x09, cdw=(0x07, 0xFFFFFFFF))).status == 0x02 | DNR
        assert admin.command(sqe(0x09, cdw=(0x0F, 12345))).status == 0
        assert admin.command(sqe(0x0A, cdw=(0x0F,))).result == 12400, "in units of KAS, 100 ms"
        assert admin.command(sqe(0x09, cdw=(0x19, 0))).status == 0
        assert admin.command(sqe(0x09, cdw=(0x19, 1))).code == 0x12B
        assert admin.command(sqe(0x09, cdw=(0x0B, 0x100))).status == 0
        assert admin.command(sqe(0x0A, cdw=(0x0B,))).result == 0x100
        assert admin.command(sqe(0x09, cdw=(0x02, 0))).status == 0x02 | DNR

    def test_log_pages(self, host: Host) -> None:
        answer = host.admin.command(
            sqe(0x02, nsid=0xFFFFFFFF, data=sgl(nvme.TRANSPORT, 512), cdw=(0x02 | 127 << 16,))
        )
        assert len(answer.data) == 512
        assert answer.data[3] == 100
        assert (
            host.admin.command(sqe(0x02, data=sgl(nvme.TRANSPORT, 512), cdw=(0x70 | 127 << 16,))).code
            == 0x109
        )

    def test_async_events_are_held_and_aborted(self, host: Host) -> None:
        admin = host.admin
        held = [admin.submit(sqe(0x0C)) for _ in range(4)]
        assert admin.command(sqe(0x0C)).code == 0x105
        assert admin.command(sqe(0x0A, cdw=(0x0B,))).status == 0, "the queue serves on"
        abort = admin.submit(sqe(0x08, cdw=(held[2] << 16,)))
        cid, aborted = admin.complete()
        assert (cid, aborted.code) == (held[2], nvme.ABORTED)
        cid, answer = admin.complete()
        assert (cid, answer.result) == (abort, 0)
        assert admin.command(sqe(0x08, cdw=(0x7777 << 16,))).result == 1, "not aborted"

    def test_keep_alive(self, host: Host) -> None:
        assert host.admin.command(sqe(0x18)).code == 0x1A, "no timer runs"
        host.admin.command(sqe(0x09, cdw=(0x0F, 60000)))
        assert host.admin.command(sqe(0x18)).status == 0

    def test_unknown_opcodes(self, host: Host, queue: Queue) -> None:
        assert host.admin.command(sqe(0xC0)).status == 0x01 | DNR
        assert queue.command(nvme.kv(0x55, b"k")).status == 0x01 | DNR
        assert queue.command(sqe(0x14, nsid=1, flags=0)).status == 0x02 | DNR, "PRPs have no place in Fabrics"

    def test_shutdown_and_reset(self, host: Host, queue: Queue) -> None:
        host.admin.property_set(0x14, 0x460061 | 1 << 14)
        assert host.admin.property_get(0x1C).result == 1 | 2 << 2
        host.admin.property_set(0x14, 0x460060)
        assert host.admin.property_get(0x1C).result == 0
        with pytest.raises((EOFError, ConnectionError)):
            queue.exist(b"k")
        assert host.admin.identify(0x01).status == 0x0C | DNR
        host.admin.property_set(0x14, 0x460061)
        host.queues.clear()
        assert host.queue().exist(b"k") == nvme.KEY_ABSENT

    def test_a_bad_configuration_is_fatal(self, card: Card) -> None:
        with Queue(card.address) as admin:
            assert admin.connect(card.nqn).status == 0
            admin.property_set(0x14, 0x000001)
            assert admin.property_get(0x1C).result == 2


class TestConnect:
    @pytest.mark.parametrize(
        ("fields", "status", "result"),
        [
            ({"recfmt": 1}, 0x180, 0),
            ({"cntlid": 1}, 0x182, 0x10010),
            ({"sqsize": 0}, 0x182, 0x2C),
            ({"sqsize": 1024}, 0x182, 0x2C),
            ({"hostnqn": ""}, 0x182, 0x10200),
            ({"qid": 1, "cntlid": 0x1234}, 0x182, 0x10010),
        ],
    )
    def test_refusals(
        self, card: Card, fields: dict[str, int | str | bytes], status: int, result: int
    ) -> None:
        with Queue(card.address) as admin:
            answer = admin.connect(card.nqn, **fields)
            assert (answer.status, answer.result) == (status | DNR, result)
            assert admin.connect(card.nqn).status == 0, "the connection may try again"

    def test_unknown_subsystem(self, card: Card) -> None:
        with Queue(card.address) as admin:
            answer = admin.connect("nqn.2024-01.io.akv.test:other")
            assert (answer.status, answer.result) == (0x182 | DNR, 0x10100)

    def test_io_queue_refusals(self, card: Card, host: Host) -> None:
        host.queue()
        cases: list[tuple[dict[str, int | str | bytes], int, int]] = [
            ({"qid": 1}, 0x0C, 0),
            ({"qid": 5}, 0x182, 0x2A),
            ({"qid": 2, "hostnqn": "nqn.2024-01.io.akv.test:stranger"}, 0x182, 0x10200),
            ({"qid": 2, "hostid": b"x" * 16}, 0x182, 0x10200),
        ]
        for fields, status, result in cases:
            with Queue(card.address) as other:
                answer = other.connect(card.nqn, cntlid=host.cntlid, **fields)
                assert (answer.status, answer.result) == (status | DNR, result)

    def test_sq_flow_control(self, card: Card) -> None:
        with Queue(card.address) as admin:
            assert admin.connect(card.nqn, cattr=4).sqhd == 0xFFFF
        with Queue(card.address) as admin:
            assert admin.connect(card.nqn, sqsize=3).sqhd == 1
            assert [admin.property_get(0x08).sqhd for _ in range(4)] == [2, 3, 0, 1]

    def test_commands_before_connect(self, card: Card) -> None:
        with Queue(card.address) as admin:
            assert admin.property_get(0x08).status == 0x0C | DNR
            assert admin.identify(0x01).status == 0x0C | DNR

    def test_many_controllers_and_queues(self, card: Card) -> None:
        hosts = [card.host() for _ in range(4)]
        queues = [host.queue() for host in hosts for _ in range(4)]
        for number, queue in enumerate(queues):
            assert queue.store(b"key%d" % number, b"value%d" % number).status == 0
        for number, queue in enumerate(reversed(queues)):
            assert queue.retrieve(b"key%d" % number, 100).data == b"value%d" % number
        assert card.stats()["controllers"] == 4
        assert card.stats()["connections"] == 20
        hosts[0].admin.wire.close()
        card.wait_connections(15)
        for host in hosts:
            host.close()
        card.wait_connections(0)

    def test_keep_alive_timeout_ends_the_controller(self, card: Card) -> None:
        with card.host(kato=300) as host, card.host(kato=60_000) as other:
            queue, witness = host.queue(), other.queue()
            for _ in range(4):
                assert host.admin.command(sqe(0x18)).status == 0
            wait_until(lambda: card.stats()["controllers"] == 1, "the silent controller ends")
            with pytest.raises((EOFError, ConnectionError)):
                queue.exist(b"k")
            assert witness.exist(b"k") == nvme.KEY_ABSENT
