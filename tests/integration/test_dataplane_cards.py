"""The real dataplane over NVMe/TCP on real software cards."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lookups import measure_lookups
from controlplane.model.routing import slot_for_dialog
from integration.client import Client, Status
from tests.support.addresses import LoopbackNet
from tests.support.dataplane import Dataplane, TestCard
from tests.support.procs import wait_until
from tests.support.softcard import Card

SERIALS = ("L0P0", "L0P1", "L1P0")
SIZE = 64 << 10


class Cluster:
    """Three cards whose content survives them, a dataplane over them, a client."""

    def __init__(self, directory: Path, net: LoopbackNet) -> None:
        self.directory = directory
        self.net = net
        self.cards = {serial: self.start_card(serial) for serial in SERIALS}
        self.dataplane = Dataplane(directory / "dataplane", net, storage_backend="kv-nvme")

    def start_card(self, serial: str) -> Card:
        directory = self.directory / serial
        directory.mkdir(exist_ok=True)
        host = self.net.host(11 + SERIALS.index(serial))
        file = ("--file", str(directory / "values"))
        return Card(directory, host, serial=serial, extra=file)

    def targets(self, *, unroutable: str | None = None) -> list[TestCard]:
        return [TestCard.of(card, routable=card.serial != unroutable) for card in self.cards.values()]

    def stop(self) -> None:
        self.dataplane.stop()
        for card in self.cards.values():
            card.stop()


@pytest.fixture
def cluster(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[Cluster]:
    made = Cluster(tmp_path, loopback_net)
    try:
        made.dataplane.start()
        made.dataplane.apply(made.targets())
        yield made
    finally:
        made.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.dataplane.client() as made:
        assert made.wait_connected(30), made.last_error
        yield made


def store(client: Client, count: int) -> dict[int, tuple[bytes, bytes]]:
    """One block each for `count` dialogs: dialog -> (key, payload)."""
    stored = {}
    [block] = client.alloc(1, SIZE)
    for _ in range(count):
        dialog, key, payload = random.getrandbits(64), os.urandom(32), os.urandom(SIZE)
        block.view[:] = payload
        assert client.put([key], [block], dialog) == [Status.OK]
        stored[dialog] = (key, payload)
    client.free([block])
    return stored


def hits(client: Client, stored: dict[int, tuple[bytes, bytes]]) -> set[int]:
    """The dialogs whose block is there; each hit is compared byte by byte."""
    found = set()
    [block] = client.alloc(1, SIZE)
    for dialog, (key, payload) in stored.items():
        [got] = client.get([key], [block], dialog)
        assert got.status in (Status.OK, Status.MISS)
        if got.status == Status.OK:
            assert bytes(block.view) == payload
            found.add(dialog)
    client.free([block])
    return found


def test_blocks_of_every_size_come_back_over_nvme(cluster: Cluster, client: Client) -> None:
    for length in (1, 4000, 4096, 300_000, 1 << 20, 9 << 20):
        [block] = client.alloc(1, length)
        key, payload, dialog = os.urandom(32), os.urandom(length), random.getrandbits(64)
        block.view[:] = payload
        assert client.put([key], [block], dialog) == [Status.OK], length
        block.view[:] = bytes(length)
        [got] = client.get([key], [block], dialog)
        assert (got.status, got.length) == (Status.OK, length)
        assert bytes(block.view) == payload
        assert client.delete([key], dialog) == [True]
        assert client.exists([key], dialog) == [False]
        client.free([block])
    assert cluster.dataplane.counter("hits") == 6
    started = cluster.dataplane.running.wait_event("Initializing NVMeTcpBackend with 3 storage devices")
    assert started["level"] == "info"


def test_a_killed_card_costs_its_dialogs_only_and_comes_back_elsewhere(
    cluster: Cluster, client: Client
) -> None:
    plan = cluster.dataplane.apply(cluster.targets())
    stored = store(client, 60)
    assert hits(client, stored) == stored.keys()
    victim = plan.cards[1]
    lost = {d for d in stored if slot_for_dialog(d, plan.routable) == victim.slot}
    assert 0 < len(lost) < len(stored)

    cluster.cards[victim.serial].kill()
    cluster.dataplane.wait_active(set(SERIALS) - {victim.serial})
    assert hits(client, stored) == stored.keys() - lost

    cluster.cards[victim.serial] = cluster.start_card(victim.serial)
    cluster.dataplane.apply(cluster.targets())
    assert hits(client, stored) == stored.keys()


def test_another_card_at_the_address_is_not_used(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    plan = cluster.dataplane.apply(cluster.targets())
    stored = store(client, 20)
    first, second = plan.cards[0], plan.cards[1]
    swapped = [
        TestCard(first.serial, *cluster.cards[second.serial].address),
        *(card for card in cluster.targets() if card.serial != first.serial),
    ]
    cluster.dataplane.apply(swapped, wait_active=False)
    cluster.dataplane.wait_active(set(SERIALS) - {first.serial})
    others = {d for d in stored if slot_for_dialog(d, plan.routable) != first.slot}
    assert hits(client, stored) == others

    def told() -> tuple[str, str]:
        (card,) = [one for one in cluster.dataplane.status().cards if one.serial == first.serial]
        return card.state, card.trouble

    wait_until(lambda: told() == ("backoff", "refused"), "it answers to another NQN")
    with Card(tmp_path / "other", cluster.net.host(21), serial="L9P9", nqn=first.nqn) as other:
        swapped[0] = TestCard(first.serial, *other.address)
        cluster.dataplane.apply(swapped, wait_active=False)
        wait_until(lambda: told() == ("wrong-serial", "wrong-serial"), "it answers to this NQN")
        assert hits(client, stored) == others


def test_a_full_batch_of_blocks_and_a_long_prefix(cluster: Cluster, client: Client) -> None:
    keys = [os.urandom(32) for _ in range(4096)]
    payloads = [key * 32 for key in keys]
    assert set(client.put(keys, payloads, 42, timeout=30)) == {Status.OK}
    assert client.match_prefix(keys, 42) == 4096
    assert client.match_prefix([*keys[:4000], os.urandom(32), *keys[4001:]], 42) == 4000
    buffers = [bytearray(1024) for _ in keys]
    got = client.get(keys, buffers, 42, timeout=30)
    assert {one.status for one in got} == {Status.OK}
    assert [bytes(buffer) for buffer in buffers] == payloads


def test_the_status_tells_every_card(cluster: Cluster, client: Client) -> None:
    store(client, 30)
    status = cluster.dataplane.status()
    assert status.backend == "kv-nvme"
    assert [card.serial for card in status.cards if card.state == "live"] == [
        card.serial for card in status.cards
    ]
    assert sum(card.puts for card in status.cards) == 30
    assert all(card.path.startswith("tcp") for card in status.cards)
    cluster.dataplane.apply(cluster.targets(unroutable="L0P1"))
    inactive = [card.serial for card in cluster.dataplane.status().cards if not card.active]
    assert inactive == ["L0P1"]


def test_cards_that_leave_the_plan_are_disconnected(cluster: Cluster) -> None:
    card = cluster.cards["L0P0"]
    assert card.stats()["connections"] > 0
    cluster.dataplane.apply([target for target in cluster.targets() if target.serial != "L0P0"])
    card.wait_connections(0)
    wait_until(
        lambda: {one.serial for one in cluster.dataplane.status().cards} == {"L0P1", "L1P0"}, "two cards"
    )


@pytest.mark.parametrize("wanted", ["prefer", "require"])
def test_a_card_that_demands_digests_is_used_where_the_settings_have_them(
    tmp_path: Path, loopback_net: LoopbackNet, wanted: str
) -> None:
    with (
        Card(tmp_path, loopback_net.host(11), extra=("--digests", "require")) as card,
        Dataplane(
            tmp_path / "dp", loopback_net, storage_backend="kv-nvme", nvme_tcp_digests=wanted
        ) as dataplane,
    ):
        dataplane.apply([TestCard.of(card)])
        with dataplane.client() as client:
            assert client.wait_connected(30)
            payload = os.urandom(3 * SIZE)
            assert client.put([bytes(32)], [payload], 1) == [Status.OK]
            buffer = bytearray(len(payload))
            assert client.get([bytes(32)], [buffer], 1)[0].status == Status.OK
            assert buffer == payload


def test_a_card_that_demands_digests_says_so_where_they_are_off(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    with (
        Card(tmp_path, loopback_net.host(11), extra=("--digests", "require")) as card,
        Dataplane(tmp_path / "dp", loopback_net, storage_backend="kv-nvme") as dataplane,
    ):
        dataplane.apply([TestCard.of(card)], wait_active=False)
        wait_until(lambda: dataplane.status().cards[0].last_error, "the card's refusal is shown")
        assert not dataplane.status().cards[0].active


def test_hot_blocks_come_from_the_cache_until_they_are_written(cluster: Cluster, client: Client) -> None:
    key, first, second = os.urandom(32), os.urandom(SIZE), os.urandom(SIZE)
    [block] = client.alloc(1, SIZE)

    def load() -> bytes | None:
        [got] = client.get([key], [block], 1)
        return bytes(block.view) if got.status == Status.OK else None

    def asked() -> int:
        return sum(card.gets for card in cluster.dataplane.status().cards)

    block.view[:] = first
    client.put([key], [block], 1)
    assert load() == first
    once = asked()
    block.view[:] = bytes(SIZE)
    assert load() == first
    assert client.exists([key], 1) == [True]
    assert asked() == once
    counters = cluster.dataplane.status().counters
    assert (counters["cache_hits"], counters["exists_cached"], counters["cache_bytes"]) == (1, 1, SIZE)
    block.view[:] = second
    client.put([key], [block], 1)
    assert load() == second
    client.delete([key], 1)
    assert load() is None
    assert client.exists([key], 1) == [False]


def test_prefixes_end_at_the_holes_that_eviction_made(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    """A card with room for a part of the keys; some are read, so that the gateway has copies of them."""
    count, size = 4096, 512
    with (
        Card(tmp_path / "card", loopback_net.host(11), serial="L0P0", capacity="2M") as card,
        Dataplane(tmp_path / "dataplane", loopback_net, storage_backend="kv-nvme") as dataplane,
        dataplane.client() as client,
    ):
        dataplane.apply([TestCard.of(card)])
        assert client.wait_connected(30), client.last_error
        keys = [os.urandom(32) for _ in range(count)]
        blocks = client.alloc(256, size)
        order = list(range(count))
        random.shuffle(order)
        for start in range(0, count, 256):
            part = [keys[at] for at in order[start : start + 256]]
            assert client.put(part, blocks, 1) == [Status.OK] * 256
        for start in range(0, count, 512):
            client.get(keys[start : start + 256], blocks, 1)
        present = client.exists(keys, 1)
        there = [
            got.status == Status.OK
            for at in range(0, count, 256)
            for got in client.get(keys[at : at + 256], blocks, 1)
        ]
        assert present == there
        assert 0 < present.count(True) < count
        cached = dataplane.counter("exists_cached")
        assert 0 < cached < present.count(True)
        for start in [0, *random.sample(range(count), 50)]:
            run = there[start:]
            assert client.match_prefix(keys[start:], 1) == (run.index(False) if False in run else len(run))


def test_lookups_are_measured(cluster: Cluster, client: Client) -> None:
    records = list(measure_lookups(client, batch=300, calls=2, repeats=2))
    assert [(record["call"], record["keys"]) for record in records] == [
        ("exists", "known"),
        ("match_prefix", "known"),
        ("exists", "unknown"),
        ("match_prefix", "unknown"),
    ]
    # Half of the keys have copies, and each is looked up in 8 calls.
    assert cluster.dataplane.counter("exists_cached") == 300 * 8
    assert cluster.dataplane.counter("exists_keys") == 600 * 8
