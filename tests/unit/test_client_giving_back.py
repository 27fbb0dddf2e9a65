"""What a session lent goes back while it lives: past silence, deadlines, credits and calls that wait."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.client import Client, Got, RequestRefusedError, Status, connect
from integration.client import session as session_module
from tests.support.client_blocks import KEYS
from tests.support.gateway import (
    BORROW,
    EXISTS,
    FREE,
    GET,
    RETURN,
    STATS,
    Limits,
    ReferenceGateway,
)
from tests.support.procs import wait_until

pytestmark = pytest.mark.usefixtures("implementation")


@pytest.fixture
def gateway(path: Path) -> Iterator[ReferenceGateway]:
    """One that takes a single request at a time, of those that need a credit."""
    limits = Limits(credits=1, max_batch=4, lent_bytes=1 << 20)
    with ReferenceGateway(path, limits=limits) as running:
        yield running


@pytest.fixture
def ask(client: Client) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Runs calls in threads of their own, which end with the test."""
    threads: list[threading.Thread] = []

    def begin(call: Callable[[], object]) -> None:
        threads.append(threading.Thread(target=call))
        threads[-1].start()

    yield begin
    client.close()
    for thread in threads:
        thread.join()


def waiting(client: Client) -> bool:
    session = client._engine._session
    return session is not None and session.waiting


def test_a_silent_gateway_is_told_all_the_same(gateway: ReferenceGateway, client: Client) -> None:
    assert client.put(KEYS[:2], [b"a", b"b"], 1) == [Status.OK] * 2
    blocks = client.alloc(6, 4096)
    views = client.borrow(KEYS[:2], 1)
    gateway.faults.withheld = {GET, STATS, FREE, RETURN}
    assert client.get(KEYS[:1], blocks[:1], 1, timeout=0.1) == [Got(Status.MISS, 0)]
    assert not client.connected
    client.free(blocks[1:])
    assert not views.release(), "at once, and nothing is proven"
    gateway.faults.let_go.set()
    wait_until(lambda: client.connected, "the gateway answers")
    wait_until(lambda: gateway.batches(FREE) == [4, 1], "the blocks are given back")
    wait_until(lambda: gateway.batches(RETURN) == [2], "the loan is given back")
    client.free(blocks)
    wait_until(lambda: client.stats()["leased_bytes"] == 0, "nothing stays leased")
    assert client.counters["sessions"] == 1


def test_neither_credits_nor_calls_that_wait_keep_it(
    gateway: ReferenceGateway,
    client: Client,
    ask: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "MAX_WAITING_CALLS", 1)
    assert client.put(KEYS[:2], [b"a", b"b"], 1) == [Status.OK] * 2
    blocks = client.alloc(2, 4096)
    views = client.borrow(KEYS[:2], 1)
    gateway.faults.withheld = {EXISTS}
    ask(lambda: client.exists(KEYS[:1], 1, timeout=60))
    wait_until(lambda: gateway.batches(EXISTS), "the credit is used")
    ask(lambda: client.exists(KEYS[:1], 1, timeout=60))
    wait_until(lambda: waiting(client), "another call waits")
    client.free(blocks, timeout=60)
    assert views.release(timeout=60)
    assert gateway.batches(FREE) == [2]
    assert gateway.batches(RETURN) == [2]
    assert waiting(client)


def test_a_block_that_was_freed_is_not_named_by_a_transfer_that_waited(
    gateway: ReferenceGateway, client: Client, ask: Callable[[Callable[[], object]], None]
) -> None:
    assert client.put(KEYS[:1], [b"stored"], 1) == [Status.OK]
    [block] = client.alloc(1, 4096)
    gateway.faults.withheld = {EXISTS}
    answers: list[object] = []
    ask(lambda: client.exists(KEYS[:1], 1, timeout=60))
    wait_until(lambda: gateway.batches(EXISTS), "the credit is used")
    ask(lambda: answers.append(client.get(KEYS[:1], [block], 1, timeout=60)))
    wait_until(lambda: waiting(client), "the GET waits")
    client.free([block])
    gateway.faults.let_go.set()
    wait_until(lambda: answers, "the GET ends")
    assert answers == [[Got(Status.MISS, 0)]]
    assert gateway.batches(GET) == [], "the block may be leased again by now"


def test_a_wrong_timeout_uses_nothing_up(gateway: ReferenceGateway, client: Client) -> None:
    assert client.put(KEYS[:1], [b"a"], 1) == [Status.OK]
    blocks = client.alloc(2, 4096)
    views = client.borrow(KEYS[:1], 1)
    with pytest.raises(ValueError, match="timeout"):
        client.free(blocks, timeout=0)
    with pytest.raises(ValueError, match="timeout"):
        views.release(timeout=0)
    with pytest.raises(ValueError, match="timeout"):
        views.exchange(KEYS[:1], 1, timeout=0)
    client.free(blocks)
    assert views.release()
    assert gateway.batches(FREE) == [2]
    assert gateway.batches(RETURN) == [1]


def test_what_a_strict_call_found_before_its_error_goes_back(gateway: ReferenceGateway, path: Path) -> None:
    def refuse_the_second(opcode: int, frame: bytes) -> bytes:
        refused = opcode == BORROW and len(gateway.batches(BORROW)) == 2
        return struct.pack("<IIHHIQQ", *refusal(frame)) + b"busy" if refused else frame

    def refusal(frame: bytes) -> tuple[int, ...]:
        magic, _, _, _, _, request, _ = struct.unpack_from("<IIHHIQQ", frame)
        return magic, 4, 0xFFFF, 1, 0, request, 0

    with connect(socket=str(path), strict=True) as client:
        assert client.put(KEYS[:4], [b"a"] * 4, 1) == [Status.OK] * 4
        gateway.faults.rewrite = refuse_the_second
        with pytest.raises(RequestRefusedError):
            client.borrow(KEYS, 1)
        wait_until(lambda: gateway.batches(RETURN) == [4], "the loans of the first frame are given back")


def test_a_block_goes_back_once(gateway: ReferenceGateway, client: Client) -> None:
    """Also where two threads free it: its offset may be another lease's by the second time."""
    [block] = client.alloc(1, 4096)
    copies = [block, block]
    client.free(copies)
    [again] = client.alloc(1, 4096)
    assert again.offset == block.offset
    client.free(copies)
    assert again.valid
    assert gateway.batches(FREE) == [1]
