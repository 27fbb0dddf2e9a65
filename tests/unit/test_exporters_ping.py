"""The ping exporter's pure parts: loss over a window, the targets file, and rounds over given outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.ping_targets import (
    PingTarget,
    PingTargets,
    PingTargetsError,
    encode_targets,
    parse_targets,
    ping_targets,
)
from controlplane.exporters.ping import PingCollector
from controlplane.exporters.ping_window import LossWindow
from controlplane.exporters.pinger import Pinger, PingOptions, ProbeError, TargetsFile

A, B = PingTarget("storage-2", "192.0.2.2"), PingTarget("storage-3", "2001:db8::3")


def test_too_few_probes_are_no_measurement() -> None:
    window = LossWindow(10.0, 3)
    for second in range(2):
        window.note(second, None)
    assert window.loss_percent(1) is None
    window.note(2, 0.5)
    assert window.loss_percent(2) == pytest.approx(200 / 3)
    assert (window.round_trip(2), window.sent, window.received) == (0.5, 3, 1)


def test_the_window_forgets_and_the_counts_do_not() -> None:
    window = LossWindow(10.0, 1)
    window.note(0, None)
    window.note(9, 0.1)
    assert window.loss_percent(9.5) == 50
    assert window.loss_percent(10) == 0
    assert window.loss_percent(100) is None
    assert (window.sent, window.received) == (2, 1)


@given(st.lists(st.tuples(st.floats(0, 5), st.none() | st.floats(0, 1)), max_size=60))
def test_loss_is_a_share_of_the_recent_probes(steps: list[tuple[float, float | None]]) -> None:
    window, now = LossWindow(20.0, 5), 0.0
    history: list[tuple[float, float | None]] = []
    for pause, outcome in steps:
        now += pause
        window.note(now, outcome)
        history.append((now, outcome))
    recent = [outcome for at, outcome in history if at > now - 20.0]
    expected = 100 * recent.count(None) / len(recent) if len(recent) >= 5 else None
    assert window.loss_percent(now) == expected


def test_the_file_says_the_same_after_a_round_trip() -> None:
    targets = ping_targets("storage-1", [B, A, A])
    assert targets.targets == (A, B)
    assert parse_targets(encode_targets(targets)) == targets


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "version 1"),
        (b'{"version": 2, "source": "a", "targets": []}', "version 1"),
        (b'{"version": 1, "source": "a"}', "no list"),
        (b'{"version": 1, "source": "a b", "targets": []}', "not a host name"),
        (b'{"version": 1, "source": "a", "targets": [{"host": "b"}]}', "without an address"),
        (b'{"version": 1, "source": "a", "targets": [{"host": "b", "address": "x"}]}', "not an IPv4"),
        (b'{"version": 1, "source": "a", "targets": [{"host": 7, "address": "::1"}]}', "not a host name"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(content: bytes, words: str) -> None:
    with pytest.raises(PingTargetsError, match=words):
        parse_targets(content)


def test_too_many_targets_are_refused() -> None:
    many = [PingTarget("h", f"10.0.{n // 250}.{n % 250}") for n in range(257)]
    with pytest.raises(PingTargetsError, match="257 targets; at most 256"):
        ping_targets("storage-1", many)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(content: bytes) -> None:
    with pytest.raises(PingTargetsError):
        parse_targets(content)


class Network:
    """Outcomes by address; an exception is what this host could not do."""

    def __init__(self) -> None:
        self.outcomes: dict[str, float | ProbeError | None] = {A.address: 0.001, B.address: 0.002}
        self.now = 0.0

    async def probe(self, address: str, _seconds: float) -> float | None:
        outcome = self.outcomes[address]
        if isinstance(outcome, ProbeError):
            raise outcome
        return outcome

    def clock(self) -> float:
        self.now += 0.1
        return self.now


def shown(pinger: Pinger) -> dict[tuple[str, str], float]:
    """Samples by (name, destination)."""
    families = PingCollector(pinger).collect()
    return {(s.name, s.labels.get("destination", "")): s.value for f in families for s in f.samples}


def write(path: Path, *targets: PingTarget) -> None:
    path.write_bytes(encode_targets(PingTargets("storage-1", targets)))


async def test_rounds_measure_each_destination_and_follow_the_file(tmp_path: Path) -> None:
    path, network = tmp_path / "targets.json", Network()
    write(path, A, B)
    network.outcomes[B.address] = None
    pinger = Pinger(TargetsFile(path), network.probe, PingOptions(), network.clock)
    for _ in range(6):
        await pinger.round()
    values = shown(pinger)
    assert values["ping_loss_percent", "storage-2"] == 0
    assert values["ping_loss_percent", "storage-3"] == 100
    assert values["ping_sent_total", "storage-3"] == 6
    assert values["ping_received_total", "storage-3"] == 0
    assert (values["ping_socket_up", ""], values["ping_targets_up", ""]) == (1, 1)
    write(path, A)
    await pinger.round()
    assert ("ping_sent_total", "storage-3") not in shown(pinger)
    assert shown(pinger)["ping_sent_total", "storage-2"] == 7


async def test_a_file_that_breaks_or_goes_leaves_the_last_targets(tmp_path: Path) -> None:
    path, network = tmp_path / "targets.json", Network()
    pinger = Pinger(TargetsFile(path), network.probe, PingOptions(), network.clock)
    await pinger.round()
    assert shown(pinger)["ping_targets_up", ""] == 0
    write(path, A)
    await pinger.round()
    path.write_text("garbage")
    await pinger.round()
    assert shown(pinger)["ping_targets_up", ""] == 0
    path.unlink()
    await pinger.round()
    assert shown(pinger)["ping_sent_total", "storage-2"] == 3


async def test_a_host_that_cannot_send_reports_that_and_no_loss(tmp_path: Path) -> None:
    path, network = tmp_path / "targets.json", Network()
    write(path, A)
    pinger = Pinger(TargetsFile(path), network.probe, PingOptions(), network.clock)
    for _ in range(6):
        await pinger.round()
    network.outcomes[A.address] = ProbeError("no sockets")
    await pinger.round()
    values = shown(pinger)
    assert values["ping_socket_up", ""] == 0
    assert ("ping_loss_percent", "storage-2") not in values
    assert values["ping_sent_total", "storage-2"] == 6
