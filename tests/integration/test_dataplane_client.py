"""The real dataplane with the real client: both sockets, both memories, routing and secrets."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.model.routing import slot_for_dialog
from integration.client import AuthenticationError, Client, Status
from tests.support.dataplane import Dataplane, TestCard

CARDS = [TestCard(f"M{number}") for number in range(3)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def dataplane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataplane]:
    with Dataplane(tmp_path_factory.mktemp("dataplane")) as process:
        process.apply(CARDS)
        yield process


@pytest.fixture(params=["unix", "unix-inline", "tcp"])
def client(request: pytest.FixtureRequest, dataplane: Dataplane) -> Iterator[Client]:
    sessions: dict[str, dict[str, Any]] = {
        "unix": {},
        "unix-inline": {"arena_bytes": 0},
        "tcp": {"socket": None},
    }
    with dataplane.client(**sessions[request.param]) as made:
        assert made.wait_connected(30), made.last_error
        yield made


def keys_of(count: int) -> list[bytes]:
    return [os.urandom(32) for _ in range(count)]


@pytest.mark.parametrize("length", [1, 63, 4096, 65_537, 3 * MIB])
def test_what_was_put_is_got(client: Client, length: int) -> None:
    dialog = random.getrandbits(64)
    keys = keys_of(4)
    payloads = [os.urandom(length) for _ in keys]
    blocks = client.alloc(4, length)
    for block, payload in zip(blocks, payloads, strict=True):
        block.view[:] = payload
    assert client.put(keys, blocks, dialog) == [Status.OK] * 4
    for block in blocks:
        block.view[:] = bytes(length)
    got = client.get(keys, blocks, dialog)
    assert [(one.status, one.length) for one in got] == [(Status.OK, length)] * 4
    assert [bytes(block.view) for block in blocks] == payloads
    client.free(blocks)


def test_misses_small_blocks_and_deletion(client: Client) -> None:
    dialog = 7
    [key, absent] = keys_of(2)
    small, large = bytearray(100), bytearray(300)
    assert client.put([key], [os.urandom(200)], dialog) == [Status.OK]
    [missed] = client.get([absent], [large], dialog)
    assert missed.status == Status.MISS
    [got] = client.get([key], [small], dialog)
    assert (got.status, got.length) == (Status.TOO_SMALL, 200)
    assert client.delete([key, absent], dialog) == [True, True]
    assert client.get([key], [large], dialog)[0].status == Status.MISS


def test_exists_and_prefix_are_exact_over_a_full_batch(client: Client) -> None:
    dialog = 99
    keys = keys_of(4096)
    stored = [index for index in range(4096) if index < 1000 or index % 3 == 0]
    for start in range(0, len(stored), 512):
        part = stored[start : start + 512]
        assert set(client.put([keys[i] for i in part], [b"x"] * len(part), dialog)) == {Status.OK}
    assert client.match_prefix(keys, dialog) == 1000
    present = client.exists(keys, dialog)
    assert [index for index, there in enumerate(present) if there] == stored
    assert client.match_prefix(keys[1000:], dialog) == 0


def test_dialogs_go_where_the_plan_says(dataplane: Dataplane, client: Client) -> None:
    before = {card.serial: card.puts for card in dataplane.status().cards}
    plan = dataplane.apply(CARDS)
    by_slot = {card.slot: card.serial for card in plan.cards}
    wanted: dict[str, int] = dict.fromkeys(before, 0)
    for _ in range(60):
        dialog = random.getrandbits(64)
        slot = slot_for_dialog(dialog, plan.routable)
        assert slot is not None
        wanted[by_slot[slot]] += 1
        client.put(keys_of(1), [b"block"], dialog)
    after = {card.serial: card.puts for card in dataplane.status().cards}
    assert {serial: after[serial] - before[serial] for serial in after} == wanted


def test_an_unroutable_card_moves_only_its_dialogs_and_comes_back(tmp_path: Path) -> None:
    with Dataplane(tmp_path) as dataplane, dataplane.client() as client:
        plan = dataplane.apply(CARDS)
        sick = plan.cards[0].serial
        dialogs = [random.getrandbits(64) for _ in range(40)]
        keys = keys_of(len(dialogs))
        for key, dialog in zip(keys, dialogs, strict=True):
            assert client.put([key], [key], dialog) == [Status.OK]
        of_sick = [slot_for_dialog(d, plan.routable) == plan.cards[0].slot for d in dialogs]

        dataplane.apply([TestCard(c.serial, routable=c.serial != sick) for c in CARDS])
        seen = [client.exists([key], dialog)[0] for key, dialog in zip(keys, dialogs, strict=True)]
        assert seen == [not was for was in of_sick]

        dataplane.apply(CARDS)
        assert all(client.exists([key], dialog)[0] for key, dialog in zip(keys, dialogs, strict=True))


def test_without_a_card_everything_is_a_miss_and_nothing_an_error(tmp_path: Path) -> None:
    with Dataplane(tmp_path) as dataplane, dataplane.client() as client:
        assert client.put(keys_of(2), [b"a", b"b"], 1) == [Status.NOT_STORED] * 2
        assert client.get(keys_of(1), [bytearray(8)], 1)[0].status == Status.MISS
        assert client.exists(keys_of(3), 1) == [False] * 3
        assert client.match_prefix(keys_of(3), 1) == 0
        assert client.delete(keys_of(1), 1) == [False]
        counters = dataplane.status().counters
        assert counters["miss_no_card"] == counters["misses"] == 1
        assert counters["lost_no_card"] == counters["lost_puts"] == 2


def test_another_num_dbs_gives_misses_never_data(tmp_path: Path) -> None:
    with Dataplane(tmp_path) as dataplane, dataplane.client() as client:
        dataplane.apply(CARDS, num_dbs=128)
        [key] = keys_of(1)
        assert client.put([key], [b"value"], 5) == [Status.OK]
        dataplane.apply(CARDS, num_dbs=64)
        assert client.get([key], [bytearray(8)], 5)[0].status == Status.MISS
        dataplane.apply(CARDS, num_dbs=128)
        assert client.get([key], [bytearray(8)], 5)[0].status == Status.OK


def test_secrets_are_proven_by_both_sides(tmp_path: Path) -> None:
    secret = os.urandom(32)
    file = tmp_path / "secrets.yaml"
    file.write_text(f'team: "{secret.hex()}"\nother: "{os.urandom(32).hex()}"\n')
    file.chmod(0o600)
    with Dataplane(tmp_path / "dp", namespace_secrets=str(file)) as dataplane:
        dataplane.apply(CARDS)
        with dataplane.client(namespace="team", secret=secret) as client:
            assert client.wait_connected(30)
            assert client.put(keys_of(1), [b"x"], 1) == [Status.OK]
        for settings in (
            {"namespace": "team", "secret": os.urandom(32)},
            {"namespace": "team"},
            {"namespace": "stranger", "secret": secret},
        ):
            with dataplane.client(**settings) as refused:
                assert not refused.wait_connected(30)
                assert isinstance(refused.last_error, AuthenticationError)


def test_namespaces_do_not_see_each_other(dataplane: Dataplane) -> None:
    [key] = keys_of(1)
    with dataplane.client(namespace="one") as one, dataplane.client(namespace="two") as two:
        assert one.put([key], [b"mine"], 3) == [Status.OK]
        assert two.exists([key], 3) == [False]
        assert two.put([key], [b"yours"], 3) == [Status.OK]
        buffer = bytearray(8)
        assert one.get([key], [buffer], 3)[0].length == 4
        assert bytes(buffer[:4]) == b"mine"


def test_stats_tell_what_happened(dataplane: Dataplane, client: Client) -> None:
    before = client.stats()
    [key] = keys_of(1)
    client.put([key], [b"12345"], 1)
    client.get([key], [bytearray(5)], 1)
    after = client.stats()
    changes = {name: after[name] - before[name] for name in ("gets", "hits", "puts", "stored", "bytes_read")}
    assert changes == {"gets": 1, "hits": 1, "puts": 1, "stored": 1, "bytes_read": 5}
    assert dict(dataplane.status().counters).keys() == after.keys()
