"""Writes of records: transactions with compares, on change only, fenced by the leader's lease where it
writes.

A write whose answer was lost (OutcomeUnknown) is resolved here by reading: what was to be written is either
there or it is tried again under a compare that a late arrival of the first try makes fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Tries
from controlplane.model.cards import CardRecord, ClusterConfig, HealthRecord
from controlplane.store import codec, kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership, LeadershipLost
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable

_TRIES = 4


async def create_cluster(client: EtcdClient, config: ClusterConfig) -> ClusterConfig:
    """Write the cluster's identity once; returns the one that holds, be it older. Raises StoreError."""
    value = codec.encode_config(config)
    async for _ in Tries(_TRIES):
        try:
            answer = await client.txn(
                [kv.absent(schema.CONFIG_KEY)],
                [kv.put(schema.CONFIG_KEY, value)],
                [kv.get(schema.CONFIG_KEY)],
            )
        except OutcomeUnknown:
            continue
        if answer.succeeded:
            return config
        return codec.decode_config(answer.responses[0].response_range.kvs[0].value)
    raise OutcomeUnknown("the cluster's configuration: no answer to any try")


async def write_card(client: EtcdClient, record: CardRecord) -> bool:
    """`/targets/<host>/cards/<device>`, on change only; True when it was written. Raises StoreError."""
    return await put_if_changed(
        client, schema.card_key(record.host, record.device), codec.encode_card(record)
    )


async def write_health(client: EtcdClient, record: HealthRecord, fence: Leadership) -> bool:
    """`/targets/<host>/health/<device>`, by the leader only. Raises LeadershipLost, or StoreError."""
    key = schema.health_key(record.host, record.device)
    return await put_if_changed(client, key, codec.encode_health(record), fence)


async def delete_card(client: EtcdClient, host: str, device: str) -> bool:
    """Remove a card's record (the registry keeps the card); True when there was one. Raises StoreError."""
    return await delete_key(client, schema.card_key(host, device))


async def delete_health(client: EtcdClient, host: str, device: str, fence: Leadership) -> bool:
    """Remove a health record; True when there was one. Raises LeadershipLost, or StoreError."""
    return await delete_key(client, schema.health_key(host, device), fence)


async def put_if_changed(
    client: EtcdClient, key: bytes, value: bytes, fence: Leadership | None = None
) -> bool:
    """Make `key` hold `value`; True when that took a write. Raises LeadershipLost, or StoreError."""
    async for _ in Tries(_TRIES):
        current = await client.get(key)
        if current is not None and current.value == value:
            return False
        if await _try_write(client, key, current, kv.put(key, value), fence):
            return True
    raise StoreUnavailable(f"{key.decode()} changes or answers get lost each time it is written")


async def delete_key(client: EtcdClient, key: bytes, fence: Leadership | None = None) -> bool:
    """Make `key` absent; True when that took a write. Raises LeadershipLost, or StoreError."""
    async for _ in Tries(_TRIES):
        current = await client.get(key)
        if current is None:
            return False
        if await _try_write(client, key, current, kv.delete(key), fence):
            return True
    raise StoreUnavailable(f"{key.decode()} changes or answers get lost each time it is deleted")


async def fenced_txn(
    client: EtcdClient,
    fence: Leadership,
    compare: Sequence[pb.Compare],
    success: Sequence[pb.RequestOp],
) -> bool:
    """A transaction that only the leader can make; False when `compare` failed.

    Raises LeadershipLost when the fence failed, or StoreError.
    """
    answer = await client.txn([*fence.compares(), *compare], success, [kv.get(schema.LEADER_KEY)])
    if answer.succeeded:
        return True
    found = answer.responses[0].response_range.kvs
    if not found or not fence.is_held_by(found[0]):
        raise LeadershipLost("another process leads, or none")
    return False


async def _try_write(
    client: EtcdClient,
    key: bytes,
    current: pb.KeyValue | None,
    operation: pb.RequestOp,
    fence: Leadership | None,
) -> bool:
    """Write unless the key changed since `current`; False when it did or the answer was lost."""
    compare = [kv.unchanged(key, current.mod_revision if current is not None else 0)]
    try:
        if fence is not None:
            return await fenced_txn(client, fence, compare, [operation])
        return (await client.txn(compare, [operation])).succeeded
    except OutcomeUnknown:
        return False
