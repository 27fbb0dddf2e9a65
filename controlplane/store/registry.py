"""The registry of cards: each enters once, in the order of joining; only an administrator takes one out."""

from __future__ import annotations

from controlplane.base.backoff import Tries
from controlplane.model.cards import RegistryEntry
from controlplane.store import codec, kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreError, StoreUnavailable
from controlplane.store.writes import delete_key

_TRIES = 6


class IdentityConflict(StoreError):
    """The serial is registered with another NQN, or the NQN with another serial; what is registered stays."""

    def __init__(self, registered: RegistryEntry, serial: str, nqn: str) -> None:
        super().__init__(
            f"card {serial} ({nqn}) is a duplicate of the registered card {registered.serial} "
            f"({registered.nqn}): two cards have one serial or one NQN, or the card was set up anew (then "
            f"forget the registered one first, with clustercli cards forget {registered.serial})"
        )
        self.registered = registered


async def register_card(client: EtcdClient, serial: str, nqn: str, uuid: str) -> RegistryEntry:
    """Enter a card, or return the entry that it has. Raises StoreError (IdentityConflict, RecordError).

    Serial and NQN are the identity. The UUID is noted as it was at the first sight; it does not decide, since
    there are targets (Linux nvmet) whose UUID changes at each start.
    """
    async for _ in Tries(_TRIES):
        entries, revision = await _read_registry(client)
        known = next(
            (entry for entry in entries.values() if serial == entry.serial or nqn == entry.nqn), None
        )
        if known is not None:
            if (known.serial, known.nqn) != (serial, nqn):
                raise IdentityConflict(known, serial, nqn)
            return known
        join_seq = 1 + max((entry.join_seq for entry in entries.values()), default=0)
        entry = RegistryEntry(serial, nqn, uuid, join_seq)
        if await _create(client, entry, revision):
            return entry
    raise StoreUnavailable(f"card {serial} could not be registered: the registry changes at each try")


async def forget_card(client: EtcdClient, serial: str) -> bool:
    """Take a card out of the registry (an administrator's act); True when it was in. Raises StoreError."""
    return await delete_key(client, schema.registry_key(serial))


async def forget_seen_card(client: EtcdClient, serial: str, revision: int) -> bool:
    """Take a card out unless the registry changed since `revision`; False when it did. Raises StoreError.

    OutcomeUnknown when the answer was lost: read again whether the card is still there.
    """
    key = schema.registry_key(serial)
    compare = [kv.present(key), kv.prefix_not_newer(schema.REGISTRY_PREFIX, revision)]
    return (await client.txn(compare, [kv.delete(key)])).succeeded


async def _read_registry(client: EtcdClient) -> tuple[dict[str, RegistryEntry], int]:
    answer = await client.range(schema.REGISTRY_PREFIX, kv.prefix_end(schema.REGISTRY_PREFIX))
    entries: dict[str, RegistryEntry] = {}
    for pair in answer.kvs:
        key = schema.parse_key(pair.key)
        if key is not None:
            entries[key.name] = _decode(key, pair.value)
    return entries, answer.header.revision


def _decode(key: schema.RecordKey, value: bytes) -> RegistryEntry:
    """An entry. While one is unreadable no card can join, since the order of joining is not known."""
    try:
        return codec.decode_registry(key.name, value)
    except codec.RecordError as error:
        raise codec.RecordError(f"record {key} is unreadable: {error}; forget that card first") from None


async def _create(client: EtcdClient, entry: RegistryEntry, revision: int) -> bool:
    """Create the entry if no card joined since `revision`; False to look again."""
    key = schema.registry_key(entry.serial)
    compare = [kv.absent(key), kv.prefix_not_newer(schema.REGISTRY_PREFIX, revision)]
    try:
        return (await client.txn(compare, [kv.put(key, codec.encode_registry(entry))])).succeeded
    except OutcomeUnknown:
        return False
