"""Calls whose caller goes away: by a signal's handler that raises, or because its task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.client import AsyncClient, Client, Got, Status, connect
from tests.support.client_blocks import BLOCK_BYTES, KEYS, store_blocks
from tests.support.gateway import (
    ALLOC,
    BORROW,
    FREE,
    GET,
    REGISTER,
    RETURN,
    UNREGISTER,
    Limits,
    ReferenceGateway,
)
from tests.support.interruption import interrupted
from tests.support.procs import wait_until

pytestmark = pytest.mark.usefixtures("implementation")


@pytest.fixture
def gateway(path: Path) -> Iterator[ReferenceGateway]:
    with ReferenceGateway(path, limits=Limits(lent_bytes=1 << 20)) as running:
        yield running


def answered(client: Client | AsyncClient) -> bool:
    """No frame of the session waits for its reply."""
    session = client._engine._session
    return session is not None and session.outstanding == 0


def test_a_late_answer_to_an_interrupted_get_touches_nothing(
    gateway: ReferenceGateway, client: Client
) -> None:
    store_blocks(client, 1)
    [block] = client.alloc(1, BLOCK_BYTES)
    into = bytearray(BLOCK_BYTES)
    gateway.faults.withheld = {GET}
    with interrupted(client, lambda: len(gateway.batches(GET)) == 2, "the GETs are on their way"):
        client.get([KEYS[0], KEYS[0]], [block, into], 1, timeout=60)
    into[:] = bytes(BLOCK_BYTES)
    assert block.busy
    gateway.faults.let_go.set()
    wait_until(lambda: answered(client), "the late replies")
    assert into == bytes(BLOCK_BYTES), "the memory is the caller's again"
    assert not block.busy


def test_an_interrupted_call_that_was_not_sent_is_not_sent_later(path: Path) -> None:
    with ReferenceGateway(path, limits=Limits(credits=1)) as gateway, connect(socket=str(path)) as client:
        into = bytearray(BLOCK_BYTES)
        gateway.faults.withheld = {GET}
        late, waiting = [memoryview(bytearray(BLOCK_BYTES)) for _ in range(2)]
        with interrupted(client, lambda: gateway.batches(GET), "the first GET is on its way"):
            client.get(KEYS[:1], [late], 1, timeout=60)
        session = client._engine._session
        assert session is not None
        with interrupted(client, lambda: session.waiting, "the second one waits"):
            client.get(KEYS[:1], [waiting], 1, timeout=60)
        assert not session.waiting
        gateway.faults.let_go.set()
        assert client.get(KEYS[:1], [into], 1) == [Got(Status.MISS, 0)]
        assert gateway.batches(GET) == [1, 1]


def test_what_an_interrupted_call_leases_goes_back(gateway: ReferenceGateway, client: Client) -> None:
    store_blocks(client, 2)
    freed = len(gateway.batches(FREE))
    gateway.faults.withheld = {ALLOC, BORROW}
    with interrupted(client, lambda: len(gateway.batches(ALLOC)) == 2, "the ALLOC is on its way"):
        client.alloc(2, 4096, timeout=60)
    with interrupted(client, lambda: gateway.batches(BORROW), "the BORROW is on its way"):
        client.borrow(KEYS[:2], 1, timeout=60)
    gateway.faults.let_go.set()
    wait_until(lambda: gateway.batches(FREE)[freed:] == [2], "the lease is given back")
    wait_until(lambda: gateway.batches(RETURN) == [2], "the loan is given back")
    assert gateway.sessions[0].leased == {}
    assert client.connected


def test_a_handler_that_raises_when_the_answer_is_there_leaves_nothing_behind(
    gateway: ReferenceGateway, client: Client
) -> None:
    store_blocks(client, 1)
    [block] = client.alloc(1, BLOCK_BYTES)
    gateway.faults.withheld = {GET, BORROW}
    let_go = gateway.faults.let_go
    with interrupted(client, lambda: gateway.batches(GET), "the GET is on its way", let_go.set):
        client.get(KEYS[:1], [block], 1, timeout=60)
    wait_until(lambda: answered(client) and not block.busy, "the reply")
    let_go.clear()
    with interrupted(client, lambda: gateway.batches(BORROW), "the BORROW is on its way", let_go.set):
        client.borrow(KEYS[:1], 1, timeout=60)
    wait_until(lambda: gateway.batches(RETURN) == [1], "the loan is given back")
    let_go.clear()
    gateway.faults.withheld = {GET}
    with interrupted(client, lambda: len(gateway.batches(GET)) == 2, "a second GET is on its way"):
        client.get(KEYS[:1], [block], 1, timeout=60)
    assert block.busy, "transfers of a block are counted right also after the first"
    let_go.set()
    wait_until(lambda: not block.busy, "the reply")


def test_a_region_that_nobody_got_is_unregistered(
    gateway: ReferenceGateway, client: Client, pool: int
) -> None:
    gateway.faults.withheld = {REGISTER}
    with interrupted(client, lambda: gateway.batches(REGISTER), "the REGISTER is on its way"):
        client.register(pool, timeout=60)
    gateway.faults.let_go.set()
    wait_until(lambda: gateway.batches(UNREGISTER) == [1], "the region is given back")


@pytest.mark.parametrize(
    ("opcode", "back", "begin"),
    [
        (ALLOC, FREE, lambda client: client.alloc(2, 4096)),
        (BORROW, RETURN, lambda client: client.borrow(KEYS[:2], 1)),
    ],
    ids=["alloc", "borrow"],
)
async def test_a_task_that_is_cancelled_when_the_answer_is_there_gives_it_back(
    gateway: ReferenceGateway,
    path: Path,
    opcode: int,
    back: int,
    begin: Callable[[AsyncClient], Awaitable[Any]],
) -> None:
    async with await AsyncClient.connect(socket=str(path), strict=True) as client:
        assert await client.put(KEYS[:2], [b"a", b"b"], 1) == [Status.OK] * 2
        task = asyncio.ensure_future(begin(client))
        rearm = client._rearm

        def cancel_when_answered() -> None:
            rearm()
            if gateway.batches(opcode) and answered(client):
                task.cancel()

        # In the same turn of the loop in which the reply is read, before the task goes on.
        client._rearm = cancel_when_answered  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await task
        client._rearm = rearm  # type: ignore[method-assign]
        await asyncio.to_thread(wait_until, lambda: gateway.batches(back) == [2], "it is given back")
        assert client.connected
