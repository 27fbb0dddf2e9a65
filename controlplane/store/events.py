"""`/events/<number>`: a bounded list of cluster events. It is apart from the records that gateways poll."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.base.backoff import Tries
from controlplane.model.events import EVENTS_KEPT, KINDS, MAX_TEXT, ClusterEvent, Note
from controlplane.store import codec, kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable

EVENTS_PREFIX = b"/events/"
_DIGITS = 20
_TRIES = 8
# etcd takes 128 operations in one transaction.
_DROPPED_AT_ONCE = 64


async def read_events(client: EtcdClient, *, seconds: float | None = None) -> tuple[ClusterEvent, ...]:
    """All events that are kept, in the order of their numbers. Raises StoreError.

    One that can't be read is left out: it tells nothing, and nothing depends on it.
    """
    answer = await client.range(EVENTS_PREFIX, kv.prefix_end(EVENTS_PREFIX), seconds=seconds)
    decoded = (_decode(pair.key, pair.value) for pair in answer.kvs)
    return tuple(event for event in decoded if event is not None)


async def append_events(client: EtcdClient, host: str, notes: Sequence[Note]) -> None:
    """Add the notes at the end, all or none, and drop the oldest beyond EVENTS_KEPT. Raises StoreError.

    After a lost answer they may stand there twice: better than not at all.
    """
    async for _ in Tries(_TRIES):
        taken = await _numbers(client)
        first = max(taken, default=0) + 1
        operations = [kv.put(_key(first + offset), _encode(host, note)) for offset, note in enumerate(notes)]
        last = first + len(notes) - 1
        old = sorted(number for number in taken if number <= last - EVENTS_KEPT)
        operations += [kv.delete(_key(number)) for number in old[:_DROPPED_AT_ONCE]]
        try:
            if (await client.txn([kv.absent(_key(first))], operations)).succeeded:
                return
        except OutcomeUnknown:
            continue
    raise StoreUnavailable("events could not be added: others add some at each try, or answers get lost")


async def _numbers(client: EtcdClient) -> list[int]:
    """The numbers that are taken, be it by an event that can't be read."""
    answer = await client.range(EVENTS_PREFIX, kv.prefix_end(EVENTS_PREFIX))
    return [number for pair in answer.kvs if (number := _number(pair.key)) is not None]


def _number(key: bytes) -> int | None:
    digits = key.removeprefix(EVENTS_PREFIX)
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() else None


def _key(number: int) -> bytes:
    return EVENTS_PREFIX + f"{number:0{_DIGITS}d}".encode("ascii")


def _encode(host: str, note: Note) -> bytes:
    return codec.encode(
        {
            "host": host,
            "kind": note.kind,
            "subject": note.subject,
            "text": note.text[:MAX_TEXT],
            "time": note.time,
        }
    )


def _decode(key: bytes, value: bytes) -> ClusterEvent | None:
    number = _number(key)
    if number is None:
        return None
    try:
        fields = codec.Fields(value)
        kind = next((known for known in KINDS if known == fields.text("kind")), None)
        if kind is None:
            return None
        note = Note(kind, fields.text("subject", empty=True), fields.text("text"), fields.number("time"))
        return ClusterEvent(number, fields.text("host"), note)
    except codec.RecordError:
        return None
