"""Records in a real etcd: the registry, writes on change, fencing, the election, the membership step."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
)
from controlplane.store import kv, schema, writes
from controlplane.store.client import EtcdClient
from controlplane.store.codec import RecordError
from controlplane.store.election import (
    Leadership,
    LeadershipLost,
    campaign,
    read_leader,
    resign,
)
from controlplane.store.hosts import update_host
from controlplane.store.lease import Lease
from controlplane.store.registry import IdentityConflict, forget_card, forget_seen_card, register_card
from controlplane.store.snapshot import read_snapshot
from controlplane.store.step import MembershipStep, begin_step, clear_step, read_step
from tests.support.etcd import EtcdCluster

CARD = CardRecord("h1", "xdp0", "L0P0", "nqn.a", "u", (CardPath("tcp", "127.0.0.11", "4420"),))
HEALTH = HealthRecord("h1", "xdp0", "L0P0", Health.SICK, Health.HEALTHY, 5.0, "service stopped")
STEP = MembershipStep("s1", "add", "h2", 0, "http://127.0.0.12:2380", (1, 2))


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    # Five seconds, since these tests are about records and not about deadlines.
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as one:
        yield one


@pytest.fixture
async def leadership(client: EtcdClient) -> AsyncIterator[Leadership]:
    lease = await Lease.grant(client, 10)
    won = await campaign(client, lease, "h1")
    assert won is not None
    yield won
    await lease.close()


async def test_cards_that_join_at_once_get_numbers_without_gap_or_double(etcd: EtcdCluster) -> None:
    async def join(number: int) -> RegistryEntry:
        async with EtcdClient(etcd.endpoints, call_seconds=5.0) as own:
            return await register_card(own, f"S{number}", f"nqn.{number}", "")

    entries = await asyncio.gather(*map(join, range(5)))
    assert sorted(entry.join_seq for entry in entries) == [1, 2, 3, 4, 5]
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        assert set((await read_snapshot(client)).registry) == set(entries)


async def test_a_registered_card_is_never_overwritten(client: EtcdClient) -> None:
    first = await register_card(client, "L0P0", "nqn.a", "u1")
    assert await register_card(client, "L0P0", "nqn.a", "u2") == first
    with pytest.raises(IdentityConflict, match=r"duplicate of the registered card L0P0 \(nqn\.a\)"):
        await register_card(client, "L0P0", "nqn.b", "u1")
    with pytest.raises(IdentityConflict, match=r"cards forget L0P0"):
        await register_card(client, "WRONG", "nqn.a", "u1")
    assert (await read_snapshot(client)).registry == (first,)


async def test_a_forgotten_card_joins_at_the_end(client: EtcdClient) -> None:
    await register_card(client, "A", "nqn.a", "")
    await register_card(client, "B", "nqn.b", "")
    assert await forget_card(client, "A")
    assert not await forget_card(client, "A")
    assert (await register_card(client, "A", "nqn.new", "")).join_seq == 3


async def test_a_card_is_forgotten_in_the_registry_that_was_seen_only(client: EtcdClient) -> None:
    await register_card(client, "A", "nqn.a", "")
    seen = (await read_snapshot(client)).revision
    await register_card(client, "B", "nqn.b", "")
    assert not await forget_seen_card(client, "A", seen)
    seen = (await read_snapshot(client)).revision
    assert await forget_seen_card(client, "A", seen)
    assert not await forget_seen_card(client, "A", seen)
    assert [entry.serial for entry in (await read_snapshot(client)).registry] == ["B"]


async def test_an_unreadable_registry_entry_stops_joins_and_is_named(client: EtcdClient) -> None:
    await client.txn([], [kv.put(schema.registry_key("BAD"), b"{")])
    with pytest.raises(RecordError, match="registry BAD is unreadable"):
        await register_card(client, "A", "nqn.a", "")
    assert await forget_card(client, "BAD")
    await register_card(client, "A", "nqn.a", "")


async def test_records_are_written_on_change_only(client: EtcdClient) -> None:
    assert await writes.write_card(client, CARD)
    revision = (await read_snapshot(client)).revision
    assert not await writes.write_card(client, CARD)
    assert (await read_snapshot(client)).revision == revision
    stopped = replace(CARD, state="stopped")
    assert await writes.write_card(client, stopped)
    assert (await read_snapshot(client)).cards == (stopped,)
    assert await writes.delete_card(client, "h1", "xdp0")
    assert not await writes.delete_card(client, "h1", "xdp0")


async def test_the_identity_of_a_cluster_is_created_once(client: EtcdClient) -> None:
    assert (await read_snapshot(client)).config is None
    first = ClusterConfig("lab", 1.0, "u1")
    assert await writes.create_cluster(client, first) == first
    assert await writes.create_cluster(client, ClusterConfig("other", 2.0, "u2")) == first
    assert (await read_snapshot(client)).config == first


async def test_a_snapshot_is_of_one_revision_and_keeps_bad_records_apart(client: EtcdClient) -> None:
    await writes.create_cluster(client, ClusterConfig("lab", 1.0, "u1"))
    await update_host(client, "h1", lambda _: HostRecord("h1", True, False, {"data": "127.0.0.11"}))
    await client.txn([], [kv.put(schema.health_key("h1", "xdp9"), b"junk")])
    at = (await client.txn([], [kv.put(schema.STEP_KEY, b"x")])).header.revision
    snapshot = await read_snapshot(client)
    assert snapshot.revision == at
    assert [host.host for host in snapshot.hosts] == ["h1"]
    assert snapshot.config is not None
    assert len(snapshot.problems) == 1
    assert "health h1 xdp9" in snapshot.problems[0]


async def test_one_leads_and_the_next_has_a_higher_term(client: EtcdClient, leadership: Leadership) -> None:
    other = await Lease.grant(client, 10)
    try:
        assert await campaign(client, other, "h2") is None
        leader = await read_leader(client)
        assert leader is not None
        assert (leader.name, leader.term) == ("h1", leadership.term)
        again = await campaign(client, leadership.lease, "h1")
        assert again is not None
        assert again.term == leadership.term
        await resign(client, leadership)
        await resign(client, leadership)
        won = await campaign(client, other, "h2")
        assert won is not None
        assert won.term > leadership.term
    finally:
        await other.close()
    assert await read_leader(client) is None


async def test_only_the_leader_writes_health(client: EtcdClient, leadership: Leadership) -> None:
    assert await writes.write_health(client, HEALTH, leadership)
    assert not await writes.write_health(client, HEALTH, leadership)
    await resign(client, leadership)
    successor = await Lease.grant(client, 10)
    try:
        assert await campaign(client, successor, "h2") is not None
        with pytest.raises(LeadershipLost):
            await writes.write_health(client, replace(HEALTH, health_xdp=Health.HEALTHY), leadership)
        with pytest.raises(LeadershipLost):
            await writes.delete_health(client, "h1", "xdp0", leadership)
    finally:
        await successor.close()
    assert (await read_snapshot(client)).health == (HEALTH,)


async def test_a_membership_step_blocks_others_until_it_is_cleared(
    client: EtcdClient, leadership: Leadership
) -> None:
    assert await begin_step(client, leadership, STEP)
    other = replace(STEP, id="s2", host="h3")
    assert not await begin_step(client, leadership, other)
    await clear_step(client, leadership, other)
    assert await read_step(client) == STEP
    await clear_step(client, leadership, STEP)
    await clear_step(client, leadership, STEP)
    assert await read_step(client) is None
    await resign(client, leadership)
    with pytest.raises(LeadershipLost):
        await begin_step(client, leadership, STEP)
