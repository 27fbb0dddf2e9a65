"""The client against the real dataplane: large batches, a suspended and a killed process, replay."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import AsyncClient, Client, Got, Status
from tests.support.dataplane import Dataplane, TestCard
from tests.support.procs import ROOT, python_environment, wait_until

pytestmark = pytest.mark.usefixtures("implementation")
CARDS = [TestCard(f"M{number}") for number in range(3)]
LENGTH = 8192
# Far below the deadline of a call, and long enough for a busy machine.
NO_WAIT = 5.0


@pytest.fixture
def dataplane(tmp_path: Path) -> Iterator[Dataplane]:
    with Dataplane(tmp_path / "dp") as process:
        process.apply(CARDS)
        yield process


@pytest.fixture
def client(dataplane: Dataplane) -> Iterator[Client]:
    with dataplane.client(strict=False, timeout=10.0) as made:
        assert made.wait_connected(30), made.last_error
        yield made


def _key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_a_call_may_have_more_entries_than_a_session_may_have_outstanding(client: Client) -> None:
    keys = [_key(number) for number in range(20_000)]
    assert set(client.put(keys, [b"x"] * len(keys), 1)) == {Status.OK}
    assert client.match_prefix([*keys, b"absent"], 1) == len(keys)
    assert all(client.exists(keys, 1))
    into = [bytearray(1) for _ in keys]
    assert {got.status for got in client.get(keys, into, 1)} == {Status.OK}
    assert all(client.delete(keys, 1))
    assert client.counters.get("refused", 0) == 0


def test_transfers_in_a_suspended_dataplane_keep_their_blocks(dataplane: Dataplane, client: Client) -> None:
    stored, read, written, check = client.alloc(4, LENGTH)
    stored.view[:] = b"s" * LENGTH
    assert client.put([_key(1)], [stored], 7) == [Status.OK]
    written.view[:] = b"w" * LENGTH
    read.view[:] = b"." * LENGTH
    dataplane.running.suspend()
    assert client.get([_key(1)], [read], 7, timeout=0.2) == [Got(Status.MISS, 0)]
    assert read.busy
    started = time.monotonic()
    assert client.put([_key(2)], [written], 7) == [Status.NOT_STORED]
    assert time.monotonic() - started < NO_WAIT, "a gateway that is known to be silent is not waited for"
    dataplane.running.resume()
    wait_until(lambda: not read.busy, "the late reply")
    assert bytes(read.view) == b"s" * LENGTH, "the late GET wrote its block and no other"
    assert bytes(written.view) == b"w" * LENGTH
    assert client.put([_key(2)], [written], 7) == [Status.OK]
    assert client.get([_key(2)], [check], 7) == [Got(Status.OK, LENGTH)]
    assert bytes(check.view) == b"w" * LENGTH


def test_a_put_that_was_given_up_stores_what_its_source_held(dataplane: Dataplane, client: Client) -> None:
    source, check = client.alloc(2, LENGTH)
    source.view[:] = b"w" * LENGTH
    dataplane.running.suspend()
    assert client.put([_key(3)], [source], 7, timeout=0.2) == [Status.NOT_STORED]
    assert source.busy
    client.free([source])
    dataplane.running.resume()
    wait_until(lambda: not source.busy, "the late reply")
    assert client.get([_key(3)], [check], 7) == [Got(Status.OK, LENGTH)]
    assert bytes(check.view) == b"w" * LENGTH


def test_a_killed_dataplane_costs_misses_until_it_is_back(dataplane: Dataplane, client: Client) -> None:
    [block] = client.alloc(1, LENGTH)
    block.view[:] = b"k" * LENGTH
    dataplane.kill()
    started = time.monotonic()
    assert client.put([_key(1)], [block], 1) == [Status.NOT_STORED]
    assert client.match_prefix([_key(1)], 1) == 0
    assert time.monotonic() - started < NO_WAIT
    wait_until(lambda: not block.valid, "the session is lost")
    assert not block.busy
    dataplane.start()
    dataplane.apply(CARDS)
    assert client.wait_connected(30)
    assert client.put([_key(1)], [b"again"], 1) == [Status.OK]


def test_memory_of_clients_that_go_comes_back(dataplane: Dataplane) -> None:
    for _ in range(5):
        with dataplane.client() as client:
            assert client.wait_connected(30)
            assert len(client.alloc(64, LENGTH)) == 64
            assert client.stats()["leased_bytes"] == 64 * LENGTH
        dataplane.wait_counter("leased_bytes", 0)


async def test_asyncio_with_the_dataplane(dataplane: Dataplane) -> None:
    async with await AsyncClient.connect(socket=str(dataplane.client_socket), strict=True) as client:
        blocks = await client.alloc(16, LENGTH)
        for number, block in enumerate(blocks):
            block.view[:] = bytes([number]) * LENGTH
        keys = [_key(number) for number in range(16)]
        assert await client.put(keys, blocks, 5) == [Status.OK] * 16
        assert await client.match_prefix([*keys, b"absent"], 5) == 16
        into = await client.alloc(16, LENGTH)
        assert await client.get(keys, into, 5) == [Got(Status.OK, LENGTH)] * 16
        assert [bytes(block.view) for block in into] == [bytes([number]) * LENGTH for number in range(16)]


@pytest.mark.parametrize("where", ["unix", "tcp"])
def test_a_made_trace_replays_as_the_simulation_predicts(
    dataplane: Dataplane, tmp_path: Path, where: str
) -> None:
    bench = [sys.executable, "-m", "bench.main"]
    trace = str(tmp_path / "trace.jsonl")
    made = [*bench, "generate-trace", "--requests", "150", "--seed", "4", "--output", trace]
    subprocess.run(made, cwd=ROOT, env=python_environment(), check=True, timeout=60)
    slots = ",".join(str(card.slot) for card in dataplane.apply(CARDS).cards)
    target = {
        "unix": ["--socket", str(dataplane.client_socket)],
        "tcp": ["--host", dataplane.host, "--port", str(dataplane.port)],
    }
    replay = [*bench, "replay", "--trace", trace, "--json", "--block-bytes", "4096", "--slots", slots]
    done = subprocess.run(
        [*replay, *target[where]],
        cwd=ROOT,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *requests, summary = (json.loads(line) for line in done.stdout.splitlines())
    assert all(line["matched"] == line["expected"] for line in requests if line["event"] == "request")
    assert summary["matched_blocks"] == summary["expected_blocks"] > 100
    assert summary["wrong_blocks"] == summary["errors"] == 0
    assert summary["put_ok_blocks"] == summary["put_blocks"]
