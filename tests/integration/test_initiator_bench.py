"""`akv-bench initiator`: the initiator alone against a real target, and what it says where it can not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.initiator import Case, summarize
from tests.support.addresses import LoopbackNet
from tests.support.softcard import Card


@pytest.fixture
def card(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    with Card(
        tmp_path / "cards", loopback_net.host(1), capacity="256M", extra=("--max-value", "128K")
    ) as card:
        yield card


def _bench(card: Card, *arguments: str, nqn: str | None = None) -> subprocess.CompletedProcess[str]:
    target = f"{card.address[0]}:{card.address[1]}"
    command = [sys.executable, "-m", "bench.main", "initiator", "--target", target, "--nqn", nqn or card.nqn]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.parametrize("more", [("--waiting", "adaptive"), ("--waiting", "poll", "--digests")])
def test_every_case_is_measured(card: Card, more: tuple[str, ...]) -> None:
    sizes, depths = ["4K", "100K"], ["1", "8"]
    done = _bench(card, "--io-size", ",".join(sizes), "--qd", ",".join(depths), "--seconds", "0.2", *more)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["op"], r["io_size"], str(r["qd"])) for r in records] == [
        (op, size, depth) for op in ("read", "write") for size in sizes for depth in depths
    ]
    assert all(r["kind"] == "kv" and r["runs"] == 1 and r["gb_per_s"] > 0 for r in records)
    assert {r["waiting"] for r in records} == {more[1]}
    assert card.stats()["commands"]["retrieve"] > 4


def test_what_can_not_be_measured_is_said(card: Card) -> None:
    too_long = _bench(card, "--io-size", "1M", "--seconds", "0.2")
    assert too_long.returncode == 2
    assert "this target takes 1 to 131072 bytes in a command" in too_long.stderr
    unknown = _bench(card, nqn="nqn.2024-01.io.akv.test:other")
    assert unknown.returncode == 2
    assert "Connect to nqn.2024-01.io.akv.test:other" in unknown.stderr
    card.stop()
    gone = _bench(card)
    assert gone.returncode == 2
    assert "connect" in gone.stderr.lower()


def test_medians_and_spread_of_the_repeats() -> None:
    base = {"mib_per_s": 1.0, "p50_us": 5.0, "p99_us": 9.0, "cpu_s_per_gb": 0.3, "cpu_cores": 0.5}
    runs = [{**base, "gb_per_s": speed, "kind": "block", "model": "Linux"} for speed in (1.0, 3.0, 1.5)]
    record = summarize(Case("read", "64K", 8), runs)
    assert (record["gb_per_s"], record["gb_per_s_min"], record["gb_per_s_max"]) == (1.5, 1.0, 3.0)
    assert record["runs"] == 3
