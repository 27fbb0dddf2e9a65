"""The client against the real dataplane: large batches, a suspended and a killed process, replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import (
    AsyncClient,
    Client,
    ClientError,
    GatewayUnavailableError,
    Got,
    LoanLostError,
    Status,
)
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
def lending(tmp_path: Path) -> Iterator[Dataplane]:
    with Dataplane(tmp_path / "dp", lend_cached_blocks=True) as process:
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


def _warm(client: Client, keys: list[bytes], lengths: list[int]) -> list[bytes]:
    """Blocks that the read cache has copies of; what is in them."""
    payloads = [os.urandom(length) for length in lengths]
    assert set(client.put(keys, payloads, 7)) == {Status.OK}
    into = [bytearray(length) for length in lengths]
    assert {got.status for got in client.get(keys, into, 7)} == {Status.OK}
    return payloads


def test_hot_blocks_are_read_in_place(lending: Dataplane) -> None:
    keys, lengths = [_key(number) for number in range(5)], [1, 4096, 4097, 100_000, LENGTH]
    with lending.client(strict=True) as client:
        payloads = _warm(client, keys, lengths)
        before = client.stats()
        with client.borrow([*keys, b"absent", keys[0]], 7) as views:
            assert [None if view is None else bytes(view) for view in views] == [*payloads, None, payloads[0]]
            assert all(view.readonly for view in views if view is not None)
            assert views.valid
            assert client.put(keys[:1], [b"other"], 7) == [Status.OK]
            assert bytes(views[0] or b"") == payloads[0], "what is lent does not change"
            during = client.stats()
        assert not views.valid
        changed = {name: during[name] - before[name] for name in ("gets", "hits", "borrowed", "bytes_read")}
        read = sum(lengths) + lengths[0]
        assert changed == {"gets": 6, "hits": 6, "borrowed": 6, "bytes_read": read}
        assert during["borrowed_bytes"] == 4096 * (1 + 1 + 2 + 25 + LENGTH // 4096)
        assert client.stats()["borrowed_bytes"] == 0
        assert views.release(), "once more does nothing"
        with client.borrow(keys[:1], 7) as again:
            assert list(again) == [None], "the copy is of the value before"
        first = client.borrow(keys[1:3], 7)
        second = first.exchange([keys[3], b"absent"], 7)
        assert not first.valid
        assert first.release(), "it is proven"
        assert [None if view is None else bytes(view) for view in second] == [payloads[3], None]
        assert client.stats()["borrowed_bytes"] == 4096 * 25
        third = second.exchange(keys[4:], 7)
        assert bytes(third[0] or b"") == payloads[4]
        with pytest.raises(TypeError):
            third.exchange([3], 7)
        assert not third.valid
        assert client.stats()["borrowed_bytes"] == 0, "given back, and the gateway is not taken for silent"


async def test_asyncio_reads_in_place(lending: Dataplane) -> None:
    with lending.client() as client:
        [payload] = _warm(client, [_key(1)], [LENGTH])
    async with await AsyncClient.connect(socket=str(lending.client_socket), strict=True) as client:
        async with await client.borrow([_key(1), b"absent"], 7) as views:
            assert list(views) == [payload, None]
        assert (await client.stats())["borrowed_bytes"] == 0
        first, failing = [await client.borrow([_key(1)], 7) for _ in range(2)]
        held = await first.exchange([_key(1)], 7)
        assert not first.valid
        assert bytes(held[0] or b"") == payload
        lending.kill()
        with pytest.raises(ClientError):
            await held.release()
        assert held[0] is not None
        with pytest.raises(ZeroDivisionError) as raised:
            async with failing:
                raise ZeroDivisionError
        assert "could not be given back" in raised.value.__notes__[0]


def test_views_outlive_the_session_and_release_says_that_it_was_lost(lending: Dataplane) -> None:
    with lending.client(strict=False) as client, lending.client(strict=True) as strict:
        [payload] = _warm(client, [_key(1)], [LENGTH])
        views = client.borrow([_key(1)], 7)
        failing, reading, changing = [strict.borrow([_key(1)], 7) for _ in range(3)]
        assert views[0] is not None
        kept = memoryview(views[0])
        others = client.borrow([_key(1)], 7)
        lending.kill()
        with pytest.raises(LoanLostError, match="drop it"), views:
            wait_until(lambda: not views.valid, "the session is lost")
        wait_until(lambda: not failing.valid, "the session is lost")
        with pytest.raises(ZeroDivisionError) as raised, failing:
            raise ZeroDivisionError
        assert "could not be given back" in raised.value.__notes__[0], "the body's error comes first"
        with pytest.raises(LoanLostError) as lost, reading:
            pass
        assert isinstance(lost.value.__cause__, GatewayUnavailableError)
        with pytest.raises(LoanLostError, match="drop it"):
            others.exchange([_key(1)], 7)
        with pytest.raises(LoanLostError, match="drop it"):
            changing.exchange([_key(1)], 7)
        assert bytes(kept) == payload, "the memory stays mapped as long as it is looked at"
        none = client.borrow([_key(1)], 7)
        assert list(none) == [None]
        assert list(none.exchange([_key(1)], 7)) == [None], "what was not lent can't be lost"
    assert bytes(kept) == payload


def test_nothing_is_borrowed_where_nothing_is_lent(client: Client, dataplane: Dataplane) -> None:
    _warm(client, [_key(1)], [LENGTH])
    assert not client.borrowing
    with client.borrow([_key(1)], 7) as views:
        assert list(views) == [None]
    assert client.stats()["borrow_misses"] == 0, "the gateway was not asked"
    with dataplane.client(borrow=False) as other:
        assert other.wait_connected(30)
        assert list(other.borrow([_key(1)], 7)) == [None]


def test_a_late_borrow_goes_back(lending: Dataplane) -> None:
    with lending.client(strict=False, timeout=20.0) as client:
        _warm(client, [_key(1)], [LENGTH])
        lending.running.suspend()
        views = client.borrow([_key(1)], 7, timeout=0.2)
        assert list(views) == [None]
        assert views.release()
        lending.running.resume()
        wait_until(lambda: client.stats().get("borrowed") == 1, "the late answer")
        wait_until(lambda: client.stats().get("borrowed_bytes") == 0, "what nobody saw was returned")
        with client.borrow([_key(1)], 7) as again:
            assert again[0] is not None


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
