"""What a software card keeps over kill -9 and a stop, and files that are torn, rotten or another's."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.support import nvme_tcp as nvme
from tests.support.addresses import LoopbackNet
from tests.support.nvme_tcp import Queue
from tests.support.softcard import Card, card_cli, list_cards

MIB = 1 << 20


class TestKill:
    def test_values_survive_under_another_port_and_id(
        self, tmp_path: Path, loopback_net: LoopbackNet
    ) -> None:
        state, file = tmp_path / "cards", tmp_path / "card.data"
        values = {b"k%d" % n: random.Random(n).randbytes(n * 3001) for n in range(60)}
        with Card(state, loopback_net.host(1), extra=("--file", str(file))) as card, card.host() as host:
            queue = host.queue()
            for key, value in values.items():
                assert queue.store(key, value).status == 0
            assert queue.delete(b"k7") == 0
            first = list_cards(state)
            card.kill()
        assert [entry["state"] for entry in first] == ["running"]
        assert [(entry["id"], entry["state"]) for entry in list_cards(state)] == [("xdp0", "stopped")]
        del values[b"k7"]
        with Card(state, loopback_net.host(2), card_id="xdp5", extra=("--file", str(file))) as card:
            (entry,) = list_cards(state)
            assert (entry["id"], entry["serial"], entry["state"]) == ("xdp5", "L0P0", "running")
            assert entry["uuid"] == first[0]["uuid"]
            assert entry["addresses"] == [
                {"transport": "tcp", "traddr": card.address[0], "trsvcid": str(card.address[1])}
            ]
            with card.host() as host:
                queue = host.queue()
                assert set(queue.list_keys()) == set(values)
                for key, value in values.items():
                    assert queue.retrieve(key, MIB).data == value

    def test_killed_again_and_again_in_the_middle_of_stores(
        self, tmp_path: Path, loopback_net: LoopbackNet
    ) -> None:
        """What was acknowledged is there or evicted, never wrong; what was not is whole or absent."""
        extra = ("--file", str(tmp_path / "card.data"))
        versions: dict[bytes, list[bytes]] = {}
        source = random.Random(11)
        for round_ in range(6):
            card = Card(tmp_path / "cards", loopback_net.host(1), capacity="24M", extra=extra)
            with card, card.host() as host:
                check_versions(host.queue(), versions)
                killer = threading.Timer(0.1 + source.random() / 4, card.kill)
                killer.start()
                store_until_cut(host.queue(), source, versions)
                killer.join()
            assert round_ < 5 or versions

    def test_a_clean_stop_is_listed(self, tmp_path: Path, loopback_net: LoopbackNet) -> None:
        with Card(tmp_path, loopback_net.host(1)) as card:
            assert card.stop() == 0
            assert card.events("stopped")
        (entry,) = list_cards(tmp_path)
        assert entry["state"] == "stopped"
        with Card(tmp_path, loopback_net.host(1)) as card:
            done = card_cli("ctl", "--state-dir", str(tmp_path), "--id", "xdp0", "stop")
            assert (done.returncode, card.wait_exit()) == (0, 0)

    def test_identities_are_not_shared(self, tmp_path: Path, loopback_net: LoopbackNet) -> None:
        with Card(tmp_path, loopback_net.host(1)) as card:
            serve = ("serve", "--nqn", card.nqn, "--listen", f"{loopback_net.host(2)}:0", "--capacity", "1M")
            again = card_cli(*serve, "--id", "xdp9", "--serial", "L0P0", "--state-dir", str(tmp_path))
            assert again.returncode == 1
            assert "serial L0P0 belongs to the running card xdp0" in again.stderr
            again = card_cli(*serve, "--id", "xdp0", "--serial", "L0P1", "--state-dir", str(tmp_path))
            assert "id xdp0 belongs to the running card xdp0" in again.stderr
            assert [entry["serial"] for entry in list_cards(tmp_path)] == ["L0P0"]

    def test_a_suspended_card_still_counts_as_running(
        self, tmp_path: Path, loopback_net: LoopbackNet
    ) -> None:
        with Card(tmp_path, loopback_net.host(1)) as card:
            card.suspend()
            assert [entry["state"] for entry in list_cards(tmp_path)] == ["running"]
            card.resume()


def store_until_cut(queue: Queue, source: random.Random, versions: dict[bytes, list[bytes]]) -> None:
    """Keep, for each key, its last acknowledged value and those that were on their way since."""
    while True:
        key = b"key%d" % source.randrange(60)
        value = source.randbytes(source.randrange(1, 400_000))
        try:
            versions.setdefault(key, []).append(value)
            status = queue.store(key, value).status
        except (EOFError, OSError):
            return
        assert status == 0
        versions[key] = [value]


def check_versions(queue: Queue, versions: dict[bytes, list[bytes]]) -> None:
    found = 0
    for key, allowed in versions.items():
        answer = queue.retrieve(key, MIB)
        if answer.status == 0:
            assert answer.data in allowed
            versions[key] = [answer.data]
            found += 1
        else:
            assert answer.code == nvme.KEY_ABSENT
    assert found >= len(versions) // 3


class TestFile:
    def test_rot_is_never_returned(self, tmp_path: Path, loopback_net: LoopbackNet) -> None:
        file = tmp_path / "card.data"
        extra = ("--file", str(file))
        value = b"needle-in-the-file" * 1000
        with Card(tmp_path, loopback_net.host(1), extra=extra) as card, card.host() as host:
            queue = host.queue()
            queue.store(b"good", b"g" * 5000)
            queue.store(b"rotten", value)
            at = file.read_bytes().index(value)
            with file.open("r+b") as data:
                data.seek(at + 9000)
                data.write(b"?")
            answer = queue.retrieve(b"rotten", 100_000)
            assert (answer.code, answer.data) == (nvme.UNRECOVERED, b"")
            assert queue.exist(b"rotten") == nvme.KEY_ABSENT
            assert queue.retrieve(b"good", 5000).data == b"g" * 5000
            assert card.stats()["corrupt"] == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--serial", "L0P1", "--capacity", "64M"), "belongs to the card with serial L0P0"),
            (("--serial", "L0P0", "--capacity", "65M"), "was made with capacity 67108864"),
        ],
    )
    def test_another_cards_file_is_refused(
        self, tmp_path: Path, loopback_net: LoopbackNet, arguments: tuple[str, ...], message: str
    ) -> None:
        file = tmp_path / "card.data"
        with Card(tmp_path, loopback_net.host(1), extra=("--file", str(file))) as card:
            card.kill()
        assert message in self.refused(tmp_path, loopback_net, file, arguments)

    def test_a_file_in_use_or_of_another_kind_is_refused(
        self, tmp_path: Path, loopback_net: LoopbackNet
    ) -> None:
        file = tmp_path / "card.data"
        arguments = ("--serial", "L0P1", "--capacity", "64M")
        with Card(tmp_path, loopback_net.host(1), extra=("--file", str(file))):
            assert "is in use by another card" in self.refused(tmp_path, loopback_net, file, arguments)
        other = tmp_path / "other"
        other.write_bytes(b"something else entirely, and long enough to be looked at as a superblock" * 2)
        assert "is not a card's file" in self.refused(tmp_path, loopback_net, other, arguments)
        assert other.read_bytes().startswith(b"something else")

    @staticmethod
    def refused(state: Path, net: LoopbackNet, file: Path, arguments: tuple[str, ...]) -> str:
        common = ("--id", "xdp7", "--nqn", "nqn.2024-01.io.akv.test:x", "--state-dir", str(state))
        listen = ("--listen", f"{net.host(3)}:0", "--file", str(file))
        done = card_cli("serve", *common, *listen, *arguments)
        assert done.returncode == 1
        return done.stderr
