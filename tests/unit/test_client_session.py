"""The client against a small gateway: both memories, both loops, and the ways to go wrong."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.client import (
    AsyncClient,
    AuthenticationError,
    Client,
    GatewayUnavailableError,
    Got,
    Status,
    connect,
)
from tests.support.client_blocks import KEYS, store_blocks
from tests.support.gateway import ALLOC, EXISTS, GET, PUT, Limits, ReferenceGateway
from tests.support.procs import wait_until

pytestmark = pytest.mark.usefixtures("implementation")
SECRET = bytes(range(32))


def test_blocks_go_and_come_by_shared_memory(gateway: ReferenceGateway, client: Client) -> None:
    data = store_blocks(client, 3)
    blocks = client.alloc(3, 8192)
    assert client.match_prefix([*KEYS[:3], b"absent"], 1) == 3
    assert client.exists([KEYS[2], b"absent", KEYS[0]], 1) == [True, False, True]
    assert client.get([*KEYS[:2], b"absent"], blocks, 1) == [
        Got(Status.OK, 5000),
        Got(Status.OK, 5000),
        Got(Status.MISS, 0),
    ]
    assert [bytes(block.view[:5000]) for block in blocks[:2]] == data[:2]
    assert client.delete([KEYS[0], b"absent"], 1) == [True, True]
    assert client.match_prefix(KEYS[:3], 1) == 0
    assert client.stats()["leased_bytes"] == 3 * 8192
    assert client.shared_memory
    assert gateway.batches(PUT) == [3]


def memory_of(array: Any) -> list[Any]:
    """An array as a client takes it; numpy's types say that it is a buffer from Python 3.12 on only."""
    return [array]


def test_numpy_uses_blocks_in_place(client: Client) -> None:
    source, target = client.alloc(2, 4096)
    values = np.frombuffer(source.view, dtype=np.float16)
    values[:] = np.arange(2048, dtype=np.float16)
    assert client.put(KEYS[:1], [source], 1) == [Status.OK]
    assert client.get(KEYS[:1], [target], 1) == [Got(Status.OK, 4096)]
    assert np.array_equal(np.frombuffer(target.view, dtype=np.float16), values)
    matrix = np.zeros((64, 16), dtype=np.float32)
    assert client.get(KEYS[:1], memory_of(matrix), 1) == [Got(Status.OK, 4096)]
    assert np.array_equal(matrix.reshape(-1).view(np.float16), values)


def test_other_memory_is_sent_inline_and_both_go_in_one_call(client: Client) -> None:
    [block] = client.alloc(1, 4096)
    block.view[:] = b"s" * 4096
    inline = bytearray(b"i" * 300)
    assert client.put(KEYS[:2], [block, inline], 1) == [Status.OK, Status.OK]
    into = bytearray(4096)
    assert client.get([KEYS[1], KEYS[0]], [block, into], 1) == [Got(Status.OK, 300), Got(Status.OK, 4096)]
    assert bytes(block.view[:300]) == b"i" * 300
    assert into == b"s" * 4096


def test_tcp_is_inline_with_private_blocks(path: Path) -> None:
    with ReferenceGateway() as gateway, connect(socket=None, host="127.0.0.1", port=gateway.port) as client:
        data = store_blocks(client, 4)
        blocks = client.alloc(4, 5000)
        assert not client.shared_memory
        assert [got.status for got in client.get(KEYS[:4], blocks, 1)] == [Status.OK] * 4
        assert [bytes(block.view) for block in blocks] == data
        assert gateway.batches(ALLOC) == []


def test_too_small_and_read_only_memory(client: Client) -> None:
    store_blocks(client, 1)
    assert client.get(KEYS[:1], [bytearray(10)], 1) == [Got(Status.TOO_SMALL, 5000)]
    with pytest.raises(TypeError, match="writable"):
        client.get(KEYS[:1], [b"read only"], 1)
    with pytest.raises(TypeError, match="contiguous"):
        client.get(KEYS[:1], memory_of(np.zeros((4, 4))[:, ::2]), 1)
    with pytest.raises(ValueError, match="2 keys for 1"):
        client.put(KEYS[:2], [b"x"], 1)
    [block] = client.alloc(1, 100)
    with pytest.raises(ValueError, match="twice"):
        client.get(KEYS[:2], [block, block], 1)
    with pytest.raises(ValueError, match="twice"):
        client.put(KEYS[:2], [block, block], 1)
    with pytest.raises(ValueError, match="64-bit"):
        client.exists(KEYS[:1], -1)
    with pytest.raises(ValueError, match="timeout"):
        client.stats(timeout=0)


def test_batches_are_split_to_what_the_gateway_grants(path: Path) -> None:
    limits = Limits(max_batch=3, credits=2, max_frame=2000, max_value=1500)
    with ReferenceGateway(path, limits=limits) as gateway, connect(socket=str(path)) as client:
        blocks = client.alloc(8, 64)
        for i, block in enumerate(blocks):
            block.view[:] = bytes([i]) * 64
        assert client.put(KEYS, blocks, 1) == [Status.OK] * 8
        assert client.match_prefix([*KEYS, b"absent"], 1) == 8
        assert client.exists([*KEYS[:4], b"absent", KEYS[7]], 1) == [True] * 4 + [False, True]
        assert gateway.batches(PUT) == gateway.batches(ALLOC) == [3, 3, 2]
        inline = [bytes([i]) * 900 for i in range(6)]
        assert client.put(KEYS[:6], inline, 1) == [Status.OK] * 6
        assert gateway.batches(PUT)[3:] == [2, 2, 2]
        into = [bytearray(900) for _ in range(6)]
        assert client.get(KEYS[:6], into, 1) == [Got(Status.OK, 900)] * 6
        assert into == inline
        assert client.put(KEYS[:2], [b"x" * 1501, b"y"], 1) == [Status.TOO_LARGE, Status.OK]
        client.free(blocks)
        assert client.stats()["leased_bytes"] == 0


def test_no_more_entries_are_outstanding_than_the_gateway_grants(path: Path) -> None:
    limits = Limits(max_batch=3, credits=32, max_entries=6)
    with ReferenceGateway(path, limits=limits) as gateway, connect(socket=str(path)) as client:
        gateway.faults.withheld = {EXISTS}
        answers: list[list[bool]] = []
        asking = threading.Thread(target=lambda: answers.append(client.exists(KEYS, 1, timeout=30)))
        asking.start()
        wait_until(lambda: gateway.batches(EXISTS) == [3, 3], "two frames are sent")
        # It would come behind the third frame, and that is not sent.
        assert client.stats(timeout=0.5) == {}
        assert gateway.batches(EXISTS) == [3, 3]
        gateway.faults.let_go.set()
        asking.join(30)
        assert answers == [[False] * 8]
        assert gateway.batches(EXISTS) == [3, 3, 2]


def test_alloc_is_all_or_nothing_over_several_frames(path: Path) -> None:
    limits = Limits(max_batch=2, max_arena=5 * 4096)
    with ReferenceGateway(path, limits=limits), connect(socket=str(path)) as client:
        assert client.alloc(6, 4096) == []
        wait_until(lambda: client.stats().get("leased_bytes") == 0, "the part that was leased is given back")
        assert len(client.alloc(4, 4096)) == 4


def test_a_secret_opens_its_namespace_only(path: Path) -> None:
    with ReferenceGateway(path, secrets={"a": SECRET}):
        with connect(socket=str(path), namespace="a", secret=SECRET, strict=True) as client:
            assert client.put(KEYS[:1], [b"data"], 1) == [Status.OK]
        with pytest.raises(AuthenticationError, match="check the namespace's secret"):
            connect(socket=str(path), namespace="a", secret=bytes(32), strict=True, wait=1)
        with pytest.raises(AuthenticationError, match="none here"):
            connect(socket=str(path), namespace="a", strict=True, wait=1)
        with connect(socket=str(path), namespace="b", secret=SECRET, wait=0.1) as client:
            assert client.put(KEYS[:1], [b"data"], 1) == [Status.NOT_STORED]


def test_many_threads_share_one_client(client: Client) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        keys = [bytes([number, i]) for i in range(8)]
        for turn in range(10):
            data = [bytes([number, i, turn]) * 50 for i in range(8)]
            client.put(keys, data, number)
            into = [bytearray(150) for _ in keys]
            client.get(keys, into, number)
            wrong.extend(i for i in range(8) if into[i] != data[i])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert client.counters["sessions"] == 1


async def test_asyncio_drives_the_same_engine(gateway: ReferenceGateway, path: Path) -> None:
    async with await AsyncClient.connect(socket=str(path), strict=True) as client:
        blocks = await client.alloc(2, 5000)
        for i, block in enumerate(blocks):
            block.view[:] = bytes([i]) * 5000
        assert await client.put(KEYS[:2], blocks, 1) == [Status.OK] * 2
        assert await client.match_prefix(KEYS[:3], 1) == 2
        into = [bytearray(5000) for _ in range(2)]
        both = [client.get([key], [memory], 1) for key, memory in zip(KEYS, into, strict=False)]
        assert await asyncio.gather(*both) == [[Got(Status.OK, 5000)]] * 2
        assert into[1] == bytes([1]) * 5000
        assert await client.exists(KEYS[:3], 1) == [True, True, False]
        assert await client.delete(KEYS[:1], 1) == [True]
        await client.free(blocks)
        assert (await client.stats())["leased_bytes"] == 0


async def test_asyncio_deadline_cancel_and_reconnect(gateway: ReferenceGateway, path: Path) -> None:
    async with await AsyncClient.connect(socket=str(path), backoff_first=0.01) as client:
        [block] = await client.alloc(1, 100)
        gateway.faults.withheld = {GET}
        task = asyncio.create_task(client.get(KEYS[:1], [block], 1))
        await asyncio.to_thread(wait_until, lambda: block.busy, "the GET is on its way")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert block.busy
        gateway.disconnect()
        gateway.faults.withheld = set()
        await asyncio.to_thread(wait_until, lambda: client.counters.get("sessions") == 2, "another session")
        assert await client.put(KEYS[:1], [b"x"], 1) == [Status.OK]
        gateway.faults.withheld = {EXISTS}
        assert await client.match_prefix(KEYS[:1], 1, timeout=0.05) == 0
        assert client.counters["deadlines"] >= 1


async def test_asyncio_without_a_gateway(path: Path) -> None:
    async with await AsyncClient.connect(socket=str(path), wait=0.05) as client:
        assert await client.match_prefix(KEYS, 1) == 0
        assert not client.connected
    with pytest.raises(GatewayUnavailableError):
        await AsyncClient.connect(socket=str(path), wait=0.05, strict=True)
