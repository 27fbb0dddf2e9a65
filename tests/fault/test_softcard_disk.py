"""The card's file or device: slow, hanging, killed, past the page cache; and a card with many hosts."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import nvme_tcp as nvme
from tests.support.addresses import LoopbackNet
from tests.support.nvme_tcp import Host
from tests.support.nvme_wire import Options
from tests.support.procs import wait_until
from tests.support.softcard import Card, card_cli

MIB = 1 << 20
VALUE = bytes(range(256)) * 256


@pytest.fixture(params=[(), ("--direct",)], ids=["page-cache", "direct"])
def card(request: pytest.FixtureRequest, tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    extra = ("--file", str(tmp_path / "card.data"), *request.param)
    with Card(tmp_path / "cards", loopback_net.host(1), extra=extra) as card:
        yield card


class TestSlowDisk:
    def test_a_read_that_hangs_holds_up_its_own_command_alone(self, card: Card) -> None:
        with card.host() as host:
            slow, well = host.queue(), host.queue()
            assert well.store(b"key", VALUE).status == 0
            card.fault("file-read", "hang", "count=1")
            late = slow.submit(nvme.kv(0x02, b"key", len(VALUE)))
            wait_until(lambda: card.hits() == 1, "the read hangs")
            assert slow.retrieve(b"key", len(VALUE)).data == VALUE, "on the same queue"
            assert well.retrieve(b"key", len(VALUE)).data == VALUE
            assert well.store(b"new", VALUE).status == 0
            assert late not in slow.answered
            assert card.stats()["store_waiting"] == 1
            card.fault("clear")
            assert slow.complete(late)[1].data == VALUE

    def test_a_write_that_hangs_holds_up_no_read_and_no_other_command(self, card: Card) -> None:
        with card.host() as host:
            slow, well = host.queue(), host.queue()
            assert well.store(b"key", VALUE).status == 0
            card.fault("file-write", "hang", "count=1")
            late = slow.submit(nvme.kv(0x01, b"new", len(VALUE)), VALUE, in_capsule=False)
            slow.answer_r2t()
            wait_until(lambda: card.hits() == 1, "the write hangs")
            assert well.retrieve(b"key", len(VALUE)).data == VALUE
            assert well.exist(b"new") == nvme.KEY_ABSENT
            assert host.admin.identify(0x01).status == 0
            assert card.stats()["receive_bytes"] == len(VALUE), "held until the value is written"
            card.fault("clear")
            assert slow.complete(late)[1].status == 0
            assert well.retrieve(b"new", len(VALUE)).data == VALUE
            assert card.stats()["receive_bytes"] == 0

    def test_capsules_that_wait_for_the_disk_are_bounded(self, card: Card) -> None:
        """16 MiB of them for each connection; the card reads on when they are written."""
        value = VALUE * 4
        with card.host(Options(timeout=60.0)) as host:
            queue, well = host.queue(), host.queue()
            card.fault("file-write", "hang", "count=1")
            entry = nvme.kv(0x01, b"key", len(value), in_capsule=True)
            sender = threading.Thread(
                target=lambda: [queue.submit(entry, value) for _ in range(100)], daemon=True
            )
            sender.start()
            wait_until(lambda: card.stats()["store_waiting"] == 65, "16 MiB and one capsule wait")
            assert well.exist(b"key") == nvme.KEY_ABSENT, "another connection"
            assert card.stats()["store_waiting"] == 65
            card.fault("clear")
            assert all(queue.complete()[1].status == 0 for _ in range(100))
            sender.join()

    def test_hosts_that_go_while_their_commands_are_on_the_disk_leave_nothing(self, card: Card) -> None:
        with card.host() as host:
            queue = host.queue()
            assert queue.store(b"key", VALUE).status == 0
            card.fault("file-read", "hang")
            queue.submit(nvme.kv(0x02, b"key", len(VALUE)))
            wait_until(lambda: card.hits() == 1, "the read hangs")
        card.wait_connections(0)
        card.fault("clear")
        wait_until(lambda: card.stats()["store_waiting"] == 0, "the read has ended")
        with card.host() as host:
            assert host.queue().retrieve(b"key", len(VALUE)).data == VALUE

    def test_a_card_whose_reads_hang_stops_on_request(self, card: Card) -> None:
        with card.host() as host:
            queue = host.queue()
            assert queue.store(b"key", VALUE).status == 0
            card.fault("file-read", "hang")
            queue.submit(nvme.kv(0x02, b"key", len(VALUE)))
            wait_until(lambda: card.hits() == 1, "the read hangs")
            done = card_cli("ctl", "--state-dir", str(card.state_dir), "--id", card.card_id, "stop")
            assert (done.returncode, card.wait_exit()) == (0, 0)

    def test_errors_of_the_medium_are_told(self, card: Card) -> None:
        with card.host() as host:
            queue = host.queue()
            assert queue.store(b"key", VALUE).status == 0
            card.fault("file-write", "error", "error=ENOSPC", "count=1")
            assert queue.store(b"new", VALUE).code == 0x81
            card.fault("file-write", "error", "error=EIO")
            assert queue.store(b"new", VALUE).code == 0x06
            assert queue.retrieve(b"key", len(VALUE)).data == VALUE
            card.fault("clear")
            assert queue.store(b"new", VALUE).status == 0


class TestKill:
    def test_values_survive_past_the_page_cache(self, tmp_path: Path, loopback_net: LoopbackNet) -> None:
        extra = ("--file", str(tmp_path / "card.data"), "--direct")
        values = {b"k%d" % n: random.Random(n).randbytes(n * 4001) for n in range(30)}
        with Card(tmp_path / "cards", loopback_net.host(1), extra=extra) as card, card.host() as host:
            queue = host.queue()
            for key, value in values.items():
                assert queue.store(key, value).status == 0
            card.kill()
        with Card(tmp_path / "cards", loopback_net.host(1), extra=extra) as card, card.host() as host:
            queue = host.queue()
            for key, value in values.items():
                assert queue.retrieve(key, MIB).data == value
            (recovered,) = card.events("store_recovered")
            assert recovered["keys"] == len(values)


class TestDevice:
    def test_a_block_device_is_a_card(self, tmp_path: Path, loopback_net: LoopbackNet) -> None:
        image = tmp_path / "image"
        with image.open("wb") as made:
            made.truncate(64 * MIB)
        with loop_device(image) as device:
            extra = ("--file", device, "--direct")
            with Card(tmp_path / "a", loopback_net.host(1), capacity="60M", extra=extra) as card:
                with card.host() as host:
                    assert host.queue().store(b"key", VALUE).status == 0
                card.kill()
            again = Card(tmp_path / "a", loopback_net.host(1), capacity="60M", extra=extra)
            with again as card, card.host() as host:
                assert host.queue().retrieve(b"key", len(VALUE)).data == VALUE
                assert card.events("store_recovered")

    def test_a_device_with_something_on_it_is_left_alone(
        self, tmp_path: Path, loopback_net: LoopbackNet
    ) -> None:
        image = tmp_path / "image"
        with image.open("wb") as made:
            made.truncate(64 * MIB)
            made.seek(1024)
            made.write(b"a file system's superblock")
        before = image.read_bytes()
        with loop_device(image) as device:
            done = card_cli(
                *("serve", "--id", "xdp0", "--serial", "L0P0", "--nqn", "nqn.2024-01.io.akv.test:x"),
                *("--listen", f"{loopback_net.host(1)}:0", "--state-dir", str(tmp_path / "cards")),
                *("--capacity", "60M", "--file", device),
            )
        assert (done.returncode, "is not a card's file" in done.stderr) == (1, True)
        assert image.read_bytes() == before


class loop_device:
    """A loop device over a file; skips where the machine has none to give."""

    def __init__(self, image: Path) -> None:
        if shutil.which("losetup") is None:
            pytest.skip("no losetup")
        done = subprocess.run(
            ["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"no loop device: {done.stderr.strip()}")
        self.device = done.stdout.strip()

    def __enter__(self) -> str:
        return self.device

    def __exit__(self, *_: object) -> None:
        subprocess.run(["losetup", "--detach", self.device], check=True)


def test_many_gateways(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    """64 controllers with 8 I/O queues each, all in use at once."""
    with Card(tmp_path, loopback_net.host(1)) as card:
        hosts: list[Host] = []
        try:
            for _ in range(64):
                hosts.append(card.host())
                for _ in range(8):
                    hosts[-1].queue(sqsize=31)
            assert (card.stats()["controllers"], card.stats()["connections"]) == (64, 64 * 9)
            queues = [queue for host in hosts for queue in host.queues]
            values = [bytes([number % 251]) * 4096 for number in range(len(queues))]
            sent = [
                queue.submit(nvme.kv(0x01, b"k%d" % number, 4096, in_capsule=True), values[number])
                for number, queue in enumerate(queues)
            ]
            assert all(queue.complete(cid)[1].status == 0 for queue, cid in zip(queues, sent, strict=True))
            asked = [queue.submit(nvme.kv(0x02, b"k%d" % n, 4096)) for n, queue in enumerate(queues)]
            for number, (queue, cid) in enumerate(zip(queues, asked, strict=True)):
                assert queue.complete(cid)[1].data == values[number]
        finally:
            for host in hosts:
                host.close()
        card.wait_connections(0)
