"""Cards and dataplanes that stop in the middle of a transfer: whose memory is it meanwhile?"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import Block, Client, DeadlineExceededError, Status
from tests.support.addresses import LoopbackNet
from tests.support.dataplane import Dataplane, TestCard
from tests.support.procs import wait_until
from tests.support.softcard import Card

MIB = 1 << 20
DIALOG = 3


@pytest.fixture
def card(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Card]:
    with Card(tmp_path, loopback_net.host(2)) as made:
        yield made


@pytest.fixture
def dataplane(tmp_path: Path, loopback_net: LoopbackNet, card: Card) -> Iterator[Dataplane]:
    settings = {"storage_backend": "kv-nvme", "io_timeout_ms": 1500, "io_timeout_strikes": 100}
    with Dataplane(tmp_path / "dp", loopback_net, **settings) as made:
        made.apply([TestCard.of(card)])
        yield made


@pytest.fixture
def client(dataplane: Dataplane) -> Iterator[Client]:
    with dataplane.client() as made:
        assert made.wait_connected(30)
        yield made


def store(client: Client, block: Block, fill: int) -> bytes:
    """A block of one byte value under a fresh key."""
    key = os.urandom(32)
    block.view[:] = bytes([fill]) * len(block.view)
    assert client.put([key], [block], DIALOG) == [Status.OK]
    return key


def test_a_suspended_card_is_a_miss_and_never_writes_late(
    card: Card, dataplane: Dataplane, client: Client
) -> None:
    [block] = client.alloc(1, MIB)
    old = store(client, block, 1)
    card.suspend()
    [got] = client.get([old], [block], DIALOG)
    assert got.status == Status.MISS
    assert block.busy, "the client takes a block for its own that a card may still write to"
    assert client.put([os.urandom(32)], [block], DIALOG) == [Status.NOT_STORED]
    client.free([block])
    [other] = client.alloc(1, MIB)
    assert other.offset != block.offset
    fresh = os.urandom(32)
    other.view[:] = b"\x02" * MIB
    card.resume()
    dataplane.wait_active({card.serial})
    assert client.put([fresh], [other], DIALOG) == [Status.OK]
    # The card lets go when its late answer came, or when its connection is closed.
    dataplane.wait_counter("leased_bytes", MIB)
    assert bytes(other.view) == b"\x02" * MIB
    for key, fill in ((fresh, 2), (old, 1)):
        assert client.get([key], [other], DIALOG)[0].status == Status.OK
        assert bytes(other.view) == bytes([fill]) * MIB
    client.free([other])
    dataplane.wait_counter("leased_bytes", 0)


def test_a_suspended_dataplane_keeps_blocks_until_it_has_answered(
    dataplane: Dataplane, client: Client
) -> None:
    """GET and PUT under way when it stops: the client gives up, but the blocks are not its own again."""
    target, source, other = client.alloc(3, MIB)
    stored = store(client, other, 7)
    put_key = os.urandom(32)
    source.view[:] = b"\x05" * MIB
    dataplane.running.suspend()
    errors: list[str] = []

    def expect_deadline(call: str) -> None:
        try:
            if call == "get":
                client.get([stored], [target], DIALOG, timeout=0.3)
            else:
                client.put([put_key], [source], DIALOG, timeout=0.3)
        except DeadlineExceededError:
            errors.append(call)

    threads = [threading.Thread(target=expect_deadline, args=(call,)) for call in ("get", "put")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(errors) == ["get", "put"]
    assert target.busy
    assert source.busy

    dataplane.running.resume()
    wait_until(lambda: not target.busy and not source.busy, "both answers came")
    # From here on the memory is the client's: nothing comes late.
    target.view[:] = b"\x09" * MIB
    source.view[:] = b"\x0a" * MIB
    [got] = client.get([put_key], [other], DIALOG)
    assert got.status == Status.OK
    assert bytes(other.view) == b"\x05" * MIB
    assert bytes(target.view) == b"\x09" * MIB
    assert bytes(source.view) == b"\x0a" * MIB


def test_a_suspended_card_costs_the_other_cards_nothing(
    tmp_path: Path, loopback_net: LoopbackNet, card: Card
) -> None:
    with (
        Card(tmp_path / "two", loopback_net.host(3), card_id="xdp1", serial="L0P1") as other,
        Dataplane(tmp_path / "dp", loopback_net, storage_backend="kv-nvme", io_timeout_ms=1000) as dataplane,
        dataplane.client() as client,
    ):
        dataplane.apply([TestCard.of(card), TestCard.of(other)])
        assert client.wait_connected(30)
        keys = [os.urandom(32) for _ in range(64)]
        for dialog, key in enumerate(keys):
            assert client.put([key], [key], dialog) == [Status.OK]
        puts = {one.serial: one.puts for one in dataplane.status().cards}
        card.suspend()
        buffer = bytearray(32)
        found = 0
        for dialog, key in enumerate(keys):
            [got] = client.get([key], [buffer], dialog)
            if got.status == Status.OK:
                assert bytes(buffer) == key
                found += 1
        assert found == puts[other.serial]
        dataplane.wait_active({other.serial})
        troubles = {one.serial: one.trouble for one in dataplane.status().cards}
        assert troubles[card.serial] == "hung"
        assert troubles[other.serial] in {"", "slow"}, "slow it may be on a busy machine"
        card.resume()
        dataplane.wait_active({card.serial, other.serial})
        assert sum(client.exists([key], dialog)[0] for dialog, key in enumerate(keys)) == 64
