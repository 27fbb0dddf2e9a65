"""The record of a host, changed under a compare, so that two writers never undo each other's change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Tries
from controlplane.model.cards import HostRecord
from controlplane.store import codec, kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable

_TRIES = 6


async def read_host(client: EtcdClient, host: str) -> HostRecord | None:
    """The host's record; None when there is none. Raises StoreError (RecordError: it is unreadable)."""
    pair = await client.get(schema.node_key(host))
    return None if pair is None else codec.decode_host(host, pair.value)


async def update_host(
    client: EtcdClient,
    host: str,
    change: Callable[[HostRecord | None], HostRecord | None],
    given: Sequence[pb.Compare] = (),
) -> HostRecord | None:
    """Apply `change` to the host's present record and return what holds then.

    `change` may be called more than once; returning None, or the record unchanged, writes nothing. It is
    written only while what is `given` holds. Raises StoreError (StoreUnavailable too when that does not
    hold), or RecordError when the present record is unreadable.
    """
    key = schema.node_key(host)
    async for _ in Tries(_TRIES):
        pair = await client.get(key)
        current = None if pair is None else codec.decode_host(host, pair.value)
        wanted = change(current)
        if wanted is None or wanted == current:
            return current
        compare = [kv.unchanged(key, pair.mod_revision if pair is not None else 0), *given]
        try:
            if (await client.txn(compare, [kv.put(key, codec.encode_host(wanted))])).succeeded:
                return wanted
        except OutcomeUnknown:
            continue
    raise StoreUnavailable(f"the record of host {host} changes or answers get lost each time it is written")


async def disable_host(client: EtcdClient, host: str, staying: str, revision: int) -> HostRecord | None:
    """Take a host out while the record of `staying` is as it was at `revision`: of hosts that are taken out
    at the same time one stays. Raises StoreError; StoreUnavailable: read again who is in.
    """
    given = [kv.not_newer(schema.node_key(staying), revision)]
    return await update_host(client, host, lambda found: found and replace(found, enabled=False), given)
