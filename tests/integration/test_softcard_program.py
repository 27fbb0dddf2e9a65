"""The software card as a program: arguments, signals, files, digests."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.nvme_wire import Options, Terminated
from tests.support.softcard import Card, card_cli


@pytest.fixture
def card(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    with Card(tmp_path / "cards", loopback_net.host(1)) as card:
        yield card


def test_required_digests(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with Card(tmp_path, loopback_net.host(1), extra=("--digests", "require")) as card:
        with pytest.raises(Terminated) as ended:
            card.host(Options(header_digest=True))
        assert (ended.value.fes, ended.value.fei) == (6, 11)
        with card.host(Options(header_digest=True, data_digest=True)) as host:
            assert host.queue().store(b"k", b"v").status == 0


def test_files_are_private(card: Card) -> None:
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(card.state_dir)}
    assert card.state_dir.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    assert modes.keys() >= {"L0P0.card.json", "L0P0.card.lock", "L0P0.card.sock"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "10.0.0.1:4420"), "not a loopback address"),
        (("--listen", "127.0.0.1"), "listen '127.0.0.1' has no port"),
        (("--listen", "::1:4420"), "needs brackets"),
        (("--listen", "localhost:4420"), "listen 'localhost' is not an IPv4 or IPv6 address"),
        (("--capacity", "12X"), "capacity '12X' must be a number of bytes"),
        (("--capacity", "99999999999T"), "must be a number of bytes"),
        (("--capacity", "1000"), "capacity '1000' must be at least 64K"),
        (("--max-value", "2G"), "max-value '2G' must be 4K to 1G"),
        (("--in-capsule", "2M"), "in-capsule '2M' must be 4K to 1M, a multiple of 16 bytes"),
        (("--in-capsule", "5000"), "in-capsule '5000' must be 4K to 1M, a multiple of 16 bytes"),
        (("--receive-memory", "x"), "receive-memory 'x' must be a number of bytes"),
        (("--serial", "a/b"), "serial 'a/b' must be"),
        (("--serial", "x" * 21), "must be 1 to 20"),
        (("--id", "../x"), "id '../x' must be"),
        (("--nqn", "card"), "nqn 'card' must be"),
        (("--uuid", "1234"), "must be a UUID"),
        (("--max-queues", "0"), "max-queues"),
    ],
)
def test_bad_arguments_name_value_and_remedy(
    tmp_path: Path, arguments: tuple[str, str], message: str
) -> None:
    values = {
        "--id": "xdp0",
        "--serial": "L0P0",
        "--nqn": "nqn.2024-01.io.akv.test:a",
        "--listen": "127.0.0.1:0",
        "--capacity": "1M",
        "--state-dir": str(tmp_path / "state"),
    }
    values[arguments[0]] = arguments[1]
    done = card_cli("serve", *(part for pair in values.items() for part in pair))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "state").exists()


def test_help_and_version() -> None:
    assert card_cli("--version").stdout.startswith("akv-softcard 0.")
    assert "serve" in card_cli("--help").stdout
    assert "--capacity" in card_cli("serve", "--help").stdout
    assert card_cli().returncode == 2


@pytest.mark.parametrize(
    "sent", [b"stop", b"stop" + b" " * 300, b"fault any drop" + b" " * 300 + b"count=1\n"]
)
def test_a_control_line_that_is_cut_is_refused(card: Card, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(10)
        control.connect(str(card.state_dir / "L0P0.card.sock"))
        control.sendall(sent)
        control.shutdown(socket.SHUT_WR)
        assert "a command is one line" in json.loads(control.makefile().readline())["error"]
    assert card.stats()["state"] == "running"
    assert card.fault("list")["faults"] == []


def test_records_that_cannot_be_read(card: Card) -> None:
    """One of a dead card is left out and named; of a living card, the list would be wrong without it."""
    dead = card.state_dir / "DEAD.card.json"
    dead.write_text("{")
    done = card_cli("list", "--json", "--state-dir", str(card.state_dir))
    assert (done.returncode, len(json.loads(done.stdout)["cards"])) == (0, 1)
    assert str(dead) in done.stderr
    assert "remove it" in done.stderr
    (card.state_dir / "L0P0.card.json").write_text("{")
    done = card_cli("list", "--json", "--state-dir", str(card.state_dir))
    assert (done.returncode, done.stdout) == (1, "")
    assert "restart the card L0P0" in done.stderr


def test_sigint_stops_as_sigterm_does(card: Card) -> None:
    card._process.send_signal(signal.SIGINT)
    assert card.wait_exit() == 0
