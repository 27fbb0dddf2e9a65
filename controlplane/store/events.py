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
        kept = await read_events(client)
        first = kept[-1].number + 1 if kept else 1
        operations = [kv.put(_key(first + offset), _encode(host, note)) for offset, note in enumerate(notes)]
        last = first + len(notes) - 1
        operations += [kv.delete(_key(event.number)) for event in kept if event.number <= last - EVENTS_KEPT]
        try:
            if (await client.txn([kv.absent(_key(first))], operations)).succeeded:
                return
        except OutcomeUnknown:
            continue
    raise StoreUnavailable("events could not be added: others add some at each try, or answers get lost")


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
    number = key.removeprefix(EVENTS_PREFIX)
    if len(number) != _DIGITS or not number.isdigit():
        return None
    try:
        fields = codec.Fields(value)
        kind = next((known for known in KINDS if known == fields.text("kind")), None)
        if kind is None:
            return None
        note = Note(kind, fields.text("subject", empty=True), fields.text("text"), fields.number("time"))
        return ClusterEvent(int(number), fields.text("host"), note)
    except codec.RecordError:
        return None
