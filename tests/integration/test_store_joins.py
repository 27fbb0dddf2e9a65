"""Requests to join: in the order in which they were made; one that was refused goes behind the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from controlplane.store import codec, kv
from controlplane.store.client import EtcdClient
from controlplane.store.joins import JOINS_PREFIX, JoinRecord, clear_join, read_join, read_joins, write_join
from tests.support.etcd import EtcdCluster

FIRST, SECOND = JoinRecord("h1", "http://h1:2380"), JoinRecord("h2", "http://h2:2380", 7)


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(etcd.endpoints, call_seconds=2.0) as client:
        yield client


async def test_requests_keep_their_order_when_they_are_repeated(client: EtcdClient) -> None:
    assert await write_join(client, FIRST)
    assert await write_join(client, SECOND)
    assert not await write_join(client, FIRST), "nothing is written for what is there"
    assert await read_joins(client) == (FIRST, SECOND)
    assert await clear_join(client, "h1")
    assert await read_joins(client) == (SECOND,)


async def test_a_refused_request_says_why_and_goes_behind_when_it_is_made_again(client: EtcdClient) -> None:
    await write_join(client, FIRST)
    await write_join(client, SECOND)
    refused = JoinRecord(FIRST.host, FIRST.peer_url, 0, "its learner never started")
    await write_join(client, refused)
    assert await read_joins(client) == (refused, SECOND)
    assert await read_join(client, "h1") == refused
    assert await write_join(client, FIRST)
    assert await read_joins(client) == (SECOND, FIRST)


async def test_a_request_of_an_older_writer_is_read(client: EtcdClient) -> None:
    value = codec.encode({"peer_url": "http://h3:2380", "replaces": 0})
    await client.txn([], [kv.put(JOINS_PREFIX + b"h3", value)])
    assert await read_joins(client) == (JoinRecord("h3", "http://h3:2380"),)
    assert await read_join(client, "nobody") is None
