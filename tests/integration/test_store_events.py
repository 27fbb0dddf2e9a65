"""The list of events in a real etcd: bounded, in order, from many hosts at once; the log that feeds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from controlplane.base.request_errors import RequestError
from controlplane.cluster.event_log import QUEUE_LENGTH, EventLog
from controlplane.cluster.link import EtcdLink
from controlplane.model.card_check import CardCheck
from controlplane.model.events import EVENTS_KEPT, Note
from controlplane.store import kv
from controlplane.store.checks import read_checks, write_checks
from controlplane.store.client import EtcdClient
from controlplane.store.events import append_events, read_events
from tests.support.etcd import EtcdCluster


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        yield client


def note(text: str) -> Note:
    return Note("card", "L0P0", text, 5.0)


async def test_events_are_numbered_without_gap_and_the_oldest_leave(client: EtcdClient) -> None:
    for start in range(0, EVENTS_KEPT + 40, 40):
        await append_events(client, "h1", [note(f"event {start + n}") for n in range(40)])
    events = await read_events(client)
    assert len(events) == EVENTS_KEPT
    numbers = [event.number for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + EVENTS_KEPT))
    assert events[-1].note.text == f"event {numbers[-1] - 1}"
    assert (events[-1].host, events[-1].note.kind, events[-1].note.time) == ("h1", "card", 5.0)


async def test_hosts_that_append_at_once_lose_nothing(etcd: EtcdCluster) -> None:
    async def append(number: int) -> None:
        async with EtcdClient(etcd.endpoints, call_seconds=5.0) as own:
            for step in range(3):
                await append_events(own, f"h{number}", [note(f"{number}.{step}")])

    await asyncio.gather(*map(append, range(4)))
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        texts = [event.note.text for event in await read_events(client)]
    assert sorted(texts) == sorted(f"{number}.{step}" for number in range(4) for step in range(3))


async def test_an_event_that_can_not_be_read_is_left_out(client: EtcdClient) -> None:
    await append_events(client, "h1", [note("good")])
    for key, value in ((b"/events/00000000000000000002", b"{"), (b"/events/x", b"{}")):
        await client.txn([], [kv.put(key, value)])
    assert [event.note.text for event in await read_events(client)] == ["good"]
    await append_events(client, "h1", [note("after it")])
    assert [(e.number, e.note.text) for e in await read_events(client)] == [(1, "good"), (3, "after it")]


class Link(EtcdLink):
    """A link whose etcd can be away."""

    def __init__(self, client: EtcdClient) -> None:
        super().__init__("http://127.0.0.1:1")
        self.there: EtcdClient | None = client

    @property
    def client(self) -> EtcdClient:
        if self.there is None:
            raise RequestError("away")
        return self.there


async def test_the_log_keeps_what_etcd_does_not_take_and_tells_what_it_dropped(client: EtcdClient) -> None:
    link = Link(client)
    log = EventLog("h1", link, lambda: 9.0)
    link.there = None
    for number in range(QUEUE_LENGTH + 5):
        log.note("card", "L0P0", f"event {number}")
        log.note("card", "L0P0", f"event {number}")
    await log.cycle()
    link.there = client
    await log.cycle()
    await log.cycle()
    events = await read_events(client)
    assert len(events) == QUEUE_LENGTH + 1
    assert events[0].note.text.startswith("5 older events of h1 were dropped")
    assert [event.note.text for event in events[1:]] == [
        f"event {number}" for number in range(5, QUEUE_LENGTH + 5)
    ]


async def test_checks_are_written_on_change_and_leave_with_their_card(client: EtcdClient) -> None:
    good = CardCheck("h/1", "xdp0", "L0P0", "nqn.0", "checked")
    bad = CardCheck("h/1", "xdp1", "HW1", "nqn.1", "mismatch", "why")
    other = CardCheck("h2", "xdp0", "L0P9", "nqn.9", "unchecked", "silent")
    assert await write_checks(client, "h/1", [good, bad]) == (good, bad)
    assert await write_checks(client, "h2", [other]) == (other,)
    assert await write_checks(client, "h/1", [good, bad]) == ()
    assert set(await read_checks(client)) == {good, bad, other}
    assert await write_checks(client, "h/1", [good]) == ()
    await client.txn([], [kv.put(b"/checks/h2/xdp1", b"garbage")])
    assert set(await read_checks(client)) == {good, other}
