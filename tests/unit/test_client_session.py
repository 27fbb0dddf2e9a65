"""The client against a small gateway: both memories, both loops, and the ways to go wrong."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.client import (
    AsyncClient,
    AuthenticationError,
    Client,
    DeadlineExceededError,
    GatewayUnavailableError,
    Got,
    ProtocolError,
    RequestRefusedError,
    Status,
    connect,
)
from tests.support.gateway import ALLOC, EXISTS, FREE, GET, HELLO, PUT, STATS, Limits, ReferenceGateway
from tests.support.procs import wait_until

pytestmark = pytest.mark.usefixtures("implementation")
KEYS = [bytes([i]) * 32 for i in range(8)]
SECRET = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


@pytest.fixture
def gateway(path: Path) -> Iterator[ReferenceGateway]:
    with ReferenceGateway(path) as running:
        yield running


@pytest.fixture
def client(gateway: ReferenceGateway, path: Path) -> Iterator[Client]:
    with connect(socket=str(path), arena_bytes=1 << 20) as connected:
        yield connected


def _fill(client: Client, count: int, length: int = 5000) -> list[bytes]:
    """Store `count` blocks under KEYS; their bytes."""
    blocks = client.alloc(count, length)
    data = [bytes([i + 1]) * length for i in range(count)]
    for block, content in zip(blocks, data, strict=True):
        block.view[:] = content
    assert client.put(KEYS[:count], blocks, 1) == [Status.OK] * count
    client.free(blocks)
    return data


def test_blocks_go_and_come_by_shared_memory(gateway: ReferenceGateway, client: Client) -> None:
    data = _fill(client, 3)
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
        data = _fill(client, 4)
        blocks = client.alloc(4, 5000)
        assert not client.shared_memory
        assert [got.status for got in client.get(KEYS[:4], blocks, 1)] == [Status.OK] * 4
        assert [bytes(block.view) for block in blocks] == data
        assert gateway.batches(ALLOC) == []


def test_too_small_and_read_only_memory(client: Client) -> None:
    _fill(client, 1)
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


def test_without_a_gateway_everything_is_a_miss_at_once(path: Path) -> None:
    with connect(socket=str(path), wait=0.05) as client:
        started = time.monotonic()
        assert client.alloc(1, 100) == []
        assert client.put(KEYS[:1], [b"x"], 1) == [Status.NOT_STORED]
        assert client.get(KEYS[:1], [bytearray(5)], 1) == [Got(Status.MISS, 0)]
        assert client.match_prefix(KEYS, 1) == 0
        assert client.exists(KEYS[:2], 1) == [False, False]
        assert client.delete(KEYS[:1], 1) == [False]
        assert client.stats() == {}
        assert time.monotonic() - started < 0.5
        assert client.counters["unavailable"] == 7
        told = str(client.last_error)
        assert client.stats() == {}
        assert str(client.last_error) == told, "an error does not tell all those before it"
        with ReferenceGateway(path):
            assert client.wait_connected(5)
            assert client.put(KEYS[:1], [b"x"], 1) == [Status.OK]


def test_a_strict_client_raises_instead(path: Path) -> None:
    with pytest.raises(GatewayUnavailableError, match="No such file"):
        connect(socket=str(path), strict=True, wait=0.05)
    with ReferenceGateway(path) as gateway, connect(socket=str(path), strict=True) as client:
        with pytest.raises(RequestRefusedError, match="NO_MEMORY"):
            client.alloc(1, (64 << 20) + 1)
        gateway.close()
        with pytest.raises(GatewayUnavailableError):
            client.stats()


def test_blocks_of_a_lost_session_are_invalid_and_their_bytes_stay(
    gateway: ReferenceGateway, client: Client
) -> None:
    [data] = _fill(client, 1)
    [block] = client.alloc(1, 5000)
    assert client.get(KEYS[:1], [block], 1) == [Got(Status.OK, 5000)]
    gateway.disconnect()
    wait_until(lambda: client.counters.get("sessions") == 2, "the client reconnects")
    assert not block.valid
    assert bytes(block.view) == data
    assert client.put(KEYS[1:2], [block], 1) == [Status.NOT_STORED]
    assert client.get(KEYS[:1], [block], 1) == [Got(Status.MISS, 0)]
    client.free([block])
    [fresh] = client.alloc(1, 5000)
    assert client.get(KEYS[:1], [fresh], 1) == [Got(Status.OK, 5000)]


def test_a_late_get_keeps_its_block_busy_until_the_reply(gateway: ReferenceGateway, client: Client) -> None:
    [data] = _fill(client, 1)
    [block] = client.alloc(1, 5000)
    gateway.faults.withheld = {GET, STATS}
    assert client.get(KEYS[:1], [block], 1, timeout=0.1) == [Got(Status.MISS, 0)]
    assert block.busy
    assert client.counters["deadlines"] == 1
    wait_until(lambda: gateway.batches(STATS), "the gateway is probed")
    gateway.faults.withheld = set()
    started = time.monotonic()
    assert client.match_prefix(KEYS[:1], 1) == 0, "a gateway that missed a deadline is away until it speaks"
    assert time.monotonic() - started < 0.1
    gateway.faults.let_go.set()
    wait_until(lambda: not block.busy, "the late reply")
    assert client.match_prefix(KEYS[:1], 1) == 1
    assert client.get(KEYS[:1], [block], 1) == [Got(Status.OK, 5000)]
    assert bytes(block.view) == data


def test_a_slow_card_is_no_silent_gateway(gateway: ReferenceGateway, client: Client) -> None:
    _fill(client, 1)
    gateway.faults.withheld = {GET}
    [block] = client.alloc(1, 5000)
    assert client.get(KEYS[:1], [block], 1, timeout=0.1) == [Got(Status.MISS, 0)]
    wait_until(lambda: client.connected, "the answer to the probe", 2.0)
    assert block.busy
    assert client.match_prefix(KEYS[:1], 1) == 1


def test_a_busy_block_is_used_by_no_other_transfer(gateway: ReferenceGateway, client: Client) -> None:
    _fill(client, 2)
    first, second = client.alloc(2, 5000)
    gateway.faults.withheld = {PUT}
    late = threading.Thread(target=client.put, args=(KEYS[2:3], [first], 1))
    late.start()
    wait_until(lambda: first.busy, "the PUT is on its way")
    assert client.get(KEYS[:2], [first, second], 1) == [Got(Status.MISS, 0), Got(Status.OK, 5000)]
    gateway.faults.let_go.set()
    late.join(30)
    assert not first.busy


def test_late_leases_are_given_back(gateway: ReferenceGateway, client: Client) -> None:
    gateway.faults.withheld = {ALLOC}
    assert client.alloc(2, 4096, timeout=0.1) == []
    gateway.faults.let_go.set()
    wait_until(lambda: gateway.batches(FREE) == [2], "a lease that nobody saw is freed")


def test_a_silent_gateway_is_given_up(path: Path) -> None:
    with (
        ReferenceGateway(path) as gateway,
        connect(socket=str(path), silence_limit=0.2, backoff_first=0.01) as client,
    ):
        gateway.faults.withheld = {EXISTS, STATS}
        assert client.match_prefix(KEYS[:1], 1, timeout=0.05) == 0
        assert not client.connected
        wait_until(lambda: client.counters.get("sessions") == 2, "another session")


def test_a_gateway_that_does_not_answer_hello_is_tried_again(path: Path) -> None:
    with ReferenceGateway(path) as gateway:
        gateway.faults.mute_hello = True
        with connect(socket=str(path), connect_timeout=0.1, backoff_first=0.01, wait=0.3) as client:
            assert "did not answer HELLO" in str(client.last_error)
            gateway.faults.mute_hello = False
            assert client.wait_connected(5)


def _header(frame: bytes, **changes: int) -> bytes:
    names = ("magic", "size", "opcode", "status", "count", "request", "dialog")
    fields = dict(zip(names, struct.unpack_from("<IIHHIQQ", frame), strict=True)) | changes
    body = frame[32:]
    return struct.pack("<IIHHIQQ", *fields.values()) + body


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "magic": lambda frame: b"XXXX" + frame[4:],
    "huge length": lambda frame: _header(frame, size=0xFFFFFFFF),
    "opcode of another request": lambda frame: _header(frame, opcode=0x8004),
    "not a reply": lambda frame: _header(frame, opcode=6),
    "unknown request id": lambda frame: _header(frame, request=999),
    "count": lambda frame: _header(frame, count=77),
    "unknown frame status": lambda frame: _header(frame, status=99),
    "short body": lambda frame: _header(frame[:36], size=4),
    "long body": lambda frame: _header(frame + b"12345678", size=len(frame) - 24),
    "prefix beyond the keys": lambda frame: frame[:32] + b"\xff\0\0\0" + frame[36:],
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_ends_the_session_and_nothing_else(path: Path, kind: str) -> None:
    with ReferenceGateway(path) as gateway, connect(socket=str(path), backoff_first=0.01) as client:
        client.put(KEYS[:1], [b"data"], 1)
        change = MALFORMED[kind]
        gateway.faults.rewrite = lambda opcode, frame: change(frame) if opcode == EXISTS else frame
        assert client.exists(KEYS[:1], 1) == [False]
        assert isinstance(client.last_error, (ProtocolError, GatewayUnavailableError))
        assert client.counters["protocol_errors"] == 1
        gateway.faults.rewrite = lambda opcode, frame: frame
        assert client.wait_connected(5)
        assert client.exists(KEYS[:1], 1) == [True]


def test_a_truncated_payload_is_never_taken_for_a_block(path: Path) -> None:
    with ReferenceGateway(path) as gateway, connect(socket=str(path), backoff_first=0.01) as client:
        client.put(KEYS[:2], [b"a" * 100, b"b" * 100], 1)
        gateway.faults.rewrite = lambda opcode, frame: (
            _header(frame[:-1], size=len(frame) - 33) if opcode == GET else frame
        )
        into = [bytearray(100), bytearray(100)]
        assert client.get(KEYS[:2], into, 1) == [Got(Status.MISS, 0)] * 2


def test_refusals_of_single_requests_leave_the_session(path: Path) -> None:
    with ReferenceGateway(path) as gateway, connect(socket=str(path)) as client:
        gateway.faults.rewrite = lambda opcode, frame: (
            _header(frame[:32] + b"busy", opcode=0xFFFF, status=1, size=4) if opcode == EXISTS else frame
        )
        assert client.exists(KEYS[:1], 1) == [False]
        assert client.counters["refused"] == 1
        assert client.connected


@pytest.mark.parametrize("offset", [1, 4096 * 1000, 0])
def test_leases_outside_the_arena_or_leased_twice_end_the_session(path: Path, offset: int) -> None:
    with (
        ReferenceGateway(path) as gateway,
        connect(socket=str(path), arena_bytes=1 << 20, backoff_first=0.01) as client,
    ):
        assert len(client.alloc(1, 4096)) == 1
        gateway.faults.rewrite = lambda opcode, frame: (
            frame[:32] + offset.to_bytes(8, "little") if opcode == ALLOC else frame
        )
        assert client.alloc(1, 4096) == []
        assert "ALLOC answered offset" in str(client.last_error)


def test_a_welcome_without_the_promised_memory_is_refused(path: Path) -> None:
    with ReferenceGateway(path) as gateway:
        gateway.faults.rewrite = lambda opcode, frame: (
            frame[:40] + (1 << 40).to_bytes(8, "little") + frame[48:] if opcode == HELLO else frame
        )
        with connect(socket=str(path), wait=0.2) as client:
            assert "promised" in str(client.last_error)


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


def test_close_ends_waiting_calls(gateway: ReferenceGateway, path: Path) -> None:
    client = connect(socket=str(path))
    gateway.faults.withheld = {EXISTS}
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(client.match_prefix(KEYS[:1], 1)))
    waiting.start()
    wait_until(lambda: gateway.batches(EXISTS), "the request is there")
    client.close()
    waiting.join(30)
    assert answers == [0]
    client.close()
    assert client.match_prefix(KEYS[:1], 1) == 0


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


def test_strict_deadline(gateway: ReferenceGateway, path: Path) -> None:
    with connect(socket=str(path), strict=True) as client:
        gateway.faults.withheld = {EXISTS}
        with pytest.raises(DeadlineExceededError):
            client.match_prefix(KEYS[:1], 1, timeout=0.05)
