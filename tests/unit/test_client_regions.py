"""Regions of the client's own memory, against a small gateway: registering, reconnecting, whose it is."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from integration.client import AsyncClient, Client, Got, Region, RequestRefusedError, Status, connect
from tests.support.client_blocks import KEYS
from tests.support.gateway import (
    GET,
    LATE,
    PUT,
    REGISTER,
    RELEASED,
    UNREGISTER,
    Limits,
    ReferenceGateway,
)
from tests.support.procs import wait_until

pytestmark = pytest.mark.usefixtures("implementation")
BYTES = 1 << 16


def test_blocks_of_a_region_go_and_come_by_reference(
    gateway: ReferenceGateway, client: Client, pool: int
) -> None:
    region = client.register(pool, offset=4096)
    assert region.registered
    assert len(region.view) == BYTES - 4096
    source, into = region.block(100, 5000), region.block(8000, 6000)
    source.view[:] = b"s" * 5000
    [leased] = client.alloc(1, 5000)
    assert client.put(KEYS[:2], [source, leased], 1) == [Status.OK, Status.OK]
    assert client.get(KEYS[:1], [into], 1) == [Got(Status.OK, 5000)]
    assert bytes(into.view[:5000]) == b"s" * 5000
    assert os.pread(pool, 5000, 4096 + 8000) == b"s" * 5000
    assert gateway.batches(PUT) == [2], "both memories go in one frame"
    assert not into.busy
    assert client.unregister(region)
    assert not into.valid
    assert client.get(KEYS[:1], [into], 1) == [Got(Status.MISS, 0)]
    with pytest.raises(ValueError, match="closed"):
        region.block(0, 1)


def test_blocks_of_a_region_do_not_share_bytes(client: Client, pool: int) -> None:
    region = client.register(pool, length=8192)
    block = region.block(1000, 1000)
    assert region.block(1000, 1000) is block
    for offset, length in ((999, 2), (1999, 1), (0, 8192), (1000, 999)):
        with pytest.raises(ValueError, match="shares bytes"):
            region.block(offset, length)
    for offset, length in ((-1, 1), (8192, 1), (0, 8193), (0, 0)):
        with pytest.raises(ValueError, match="no block"):
            region.block(offset, length)
    region.block(0, 1000)
    region.block(2000, 6192)
    client.free([block])
    assert not block.valid
    assert region.block(1500, 500) is not block


def test_a_session_that_begins_meanwhile_is_told_once(
    path: Path, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways: list[ReferenceGateway] = []

    def begin_session(client: Client, *arguments: Any) -> Any:
        gateways.append(ReferenceGateway(path))
        assert client.wait_connected(30)
        return run(client, *arguments)

    with connect(socket=str(path), wait=0.01, backoff_first=0.01, backoff_cap=0.05) as client:
        run = Client._run
        monkeypatch.setattr(Client, "_run", begin_session)
        region = client.register(pool)
        monkeypatch.undo()
        assert region.registered
        assert client.stats()["leased_bytes"] == 0
        assert gateways[0].batches(REGISTER) == [1]
        gateways[0].close()


def test_only_what_lies_inside_a_file_can_be_a_region(client: Client, pool: int) -> None:
    for offset, length in ((0, BYTES + 1), (1, 100), (BYTES, None), (0, 0)):
        with pytest.raises(ValueError, match="a region of"):
            client.register(pool, offset=offset, length=length)


def test_a_new_session_has_the_regions_too(gateway: ReferenceGateway, client: Client, pool: int) -> None:
    region = client.register(pool)
    block = region.block(0, 4096)
    gateway.disconnect()
    wait_until(lambda: client.counters.get("sessions") == 2 and region.registered, "a new session")
    assert block.valid
    assert client.put(KEYS[:1], [block], 1) == [Status.OK]
    assert len(gateway.batches(REGISTER)) == 2


def test_a_region_that_is_refused_is_sent_inline(path: Path, pool: int) -> None:
    with ReferenceGateway(path, limits=Limits(max_regions=1)) as gateway:
        with connect(socket=str(path)) as client:
            first, second = client.register(pool), client.register(pool)
            assert (first.registered, second.registered) == (True, False)
            assert isinstance(client.last_error, RequestRefusedError)
            block = second.block(0, 3000)
            block.view[:] = b"i" * 3000
            assert client.put(KEYS[:1], [block], 1) == [Status.OK]
            assert client.get(KEYS[:1], [first.block(0, 3000)], 1) == [Got(Status.OK, 3000)]
        gateway.limits.max_regions = 0
        with connect(socket=str(path)) as client:
            block = client.register(pool).block(0, 3000)
            assert client.put(KEYS[:1], [block], 1) == [Status.OK]
        with connect(socket=str(path), regions=False, strict=True) as client:
            assert not client.register(pool).registered


def test_tcp_has_no_regions(pool: int) -> None:
    with ReferenceGateway() as gateway, connect(socket=None, port=gateway.port) as client:
        region = client.register(pool)
        block = region.block(0, 3000)
        block.view[:] = b"t" * 3000
        assert client.put(KEYS[:1], [block], 1) == [Status.OK]
        assert client.get(KEYS[:1], [region.block(4096, 3000)], 1) == [Got(Status.OK, 3000)]
        assert bytes(region.view[4096:7096]) == b"t" * 3000
        assert gateway.batches(REGISTER) == []


def test_a_late_block_is_busy_until_the_gateway_releases_it(
    gateway: ReferenceGateway, client: Client, pool: int
) -> None:
    region = client.register(pool)
    first, second = region.block(0, 100), region.block(4096, 100)
    assert client.put(KEYS[:2], [first, second], 1) == [Status.OK] * 2
    answered: list[bytes] = []

    def late(opcode: int, frame: bytes) -> bytes:
        if opcode != GET or answered:
            return frame
        answered.append(frame)
        return frame[:32] + struct.pack("<II", LATE, 0) + frame[40:]

    gateway.faults.rewrite = late
    assert client.get(KEYS[:2], [first, second], 1) == [Got(Status.MISS, 0), Got(Status.OK, 100)]
    assert (first.busy, second.busy, region.busy) == (True, False, True)
    assert client.get(KEYS[:1], [first], 1) == [Got(Status.MISS, 0)], "a busy block takes no transfer"
    client.free([first])
    with pytest.raises(ValueError, match="shares bytes"):
        region.block(50, 100)
    [session] = gateway.sessions
    notice = bytearray(answered[0][:32])
    struct.pack_into("<IHHI", notice, 4, 0, RELEASED | 0x8000, 0, 0)
    session.sock.sendall(notice)
    wait_until(lambda: not first.busy, "the notice")


def test_memory_of_an_unanswered_unregister_is_busy(
    gateway: ReferenceGateway, client: Client, pool: int
) -> None:
    region = client.register(pool)
    gateway.faults.withheld.add(UNREGISTER)
    assert not client.unregister(region, timeout=0.2)
    assert region.busy
    gateway.faults.let_go.set()
    wait_until(lambda: not region.busy, "the answer")


@pytest.mark.parametrize("body", [b"", bytes(8), b"\xff\xff" + bytes(6), bytes(9)])
def test_an_impossible_answer_ends_the_session(
    gateway: ReferenceGateway, client: Client, pool: int, body: bytes
) -> None:
    def rewritten(opcode: int, frame: bytes) -> bytes:
        wrong = frame[:4] + struct.pack("<I", len(body)) + frame[8:32] + body
        return wrong if opcode == REGISTER and len(gateway.batches(REGISTER)) == 1 else frame

    gateway.faults.rewrite = rewritten
    region = client.register(pool)
    wait_until(lambda: client.counters.get("sessions") == 2 and region.registered, "a new session")
    assert client.counters["sessions_lost"] == 1


async def test_asyncio_has_regions(gateway: ReferenceGateway, path: Path, pool: int) -> None:
    async with await AsyncClient.connect(socket=str(path), strict=True) as client:
        region = await client.register(pool)
        assert isinstance(region, Region)
        blocks = [region.block(offset, 1000) for offset in range(0, 8000, 1000)]
        assert await client.put(KEYS, blocks, 1) == [Status.OK] * 8
        assert await client.get(KEYS, blocks, 1) == [Got(Status.OK, 1000)] * 8
        assert await client.unregister(region)
