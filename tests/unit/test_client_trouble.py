"""The client at a gateway that is away, silent, slow or wrong: misses, deadlines, whose memory is whose."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.client import (
    AsyncClient,
    Client,
    DeadlineExceededError,
    GatewayUnavailableError,
    Got,
    ProtocolError,
    RequestRefusedError,
    Status,
    connect,
)
from tests.support.client_blocks import KEYS, store_blocks
from tests.support.gateway import ALLOC, EXISTS, FREE, GET, HELLO, PUT, STATS, ReferenceGateway
from tests.support.procs import wait_until

pytestmark = pytest.mark.usefixtures("implementation")


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
    [data] = store_blocks(client, 1)
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
    [data] = store_blocks(client, 1)
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
    store_blocks(client, 1)
    gateway.faults.withheld = {GET}
    [block] = client.alloc(1, 5000)
    assert client.get(KEYS[:1], [block], 1, timeout=0.1) == [Got(Status.MISS, 0)]
    wait_until(lambda: client.connected, "the answer to the probe", 2.0)
    assert block.busy
    assert client.match_prefix(KEYS[:1], 1) == 1


def test_a_busy_block_is_used_by_no_other_transfer(gateway: ReferenceGateway, client: Client) -> None:
    store_blocks(client, 2)
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


def test_strict_deadline(gateway: ReferenceGateway, path: Path) -> None:
    with connect(socket=str(path), strict=True) as client:
        gateway.faults.withheld = {EXISTS}
        with pytest.raises(DeadlineExceededError):
            client.match_prefix(KEYS[:1], 1, timeout=0.05)


async def test_an_unexpected_error_costs_a_session_and_not_the_client(
    gateway: ReferenceGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_once(**ready: bool) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    async def check(client: Client | AsyncClient) -> None:
        monkeypatch.setattr(client._engine, "handle_io", break_once)
        gateway.disconnect()
        await asyncio.to_thread(wait_until, lambda: client.counters["sessions"] == 2, "another session")
        assert client.connected

    settings: dict[str, Any] = {"socket": str(path), "backoff_first": 0.01}
    with connect(**settings) as client:
        await check(client)
    async with await AsyncClient.connect(**settings) as other:
        await check(other)
