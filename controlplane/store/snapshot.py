"""One consistent picture of the cluster: all records at one revision, in one linearizable transaction."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from akv.etcd import etcd_pb2 as pb

from controlplane.model.cards import (
    CardRecord,
    ClusterConfig,
    ClusterSnapshot,
    HealthRecord,
    HostRecord,
    RegistryEntry,
    UnreadableRecord,
)
from controlplane.store import codec, kv, schema
from controlplane.store.client import EtcdClient

# More than a cluster of 8 cards on many hosts has.
KEPT_RECORDS = 1024
Record = ClusterConfig | RegistryEntry | HostRecord | CardRecord | HealthRecord


async def read_snapshot(client: EtcdClient, *, seconds: float | None = None) -> ClusterSnapshot:
    """Read `/cluster/` and `/targets/` at one revision. Raises StoreError.

    A record that can't be read becomes a sentence in `problems` and an entry in `unreadable`, never an
    exception.
    """
    reads = [kv.get_prefix(schema.CLUSTER_PREFIX), kv.get_prefix(schema.TARGETS_PREFIX)]
    answer = await client.txn([], reads, seconds=seconds)
    pairs = (pair for response in answer.responses for pair in response.response_range.kvs)
    return build_snapshot(answer.header.revision, pairs)


def build_snapshot(revision: int, pairs: Iterable[pb.KeyValue]) -> ClusterSnapshot:
    """Decode the records among `pairs`; keys that name no record are left out."""
    records: list[Record] = []
    problems: list[str] = []
    unreadable: list[UnreadableRecord] = []
    for pair in pairs:
        key, found = _read(pair.key, pair.value)
        if key is None:
            continue
        if isinstance(found, str):
            problems.append(f"record {key} is unreadable: {found}")
            unreadable.append(UnreadableRecord(key.kind, key.host, key.name))
        elif found is not None:
            records.append(found)
    return ClusterSnapshot(
        revision,
        next((record for record in records if isinstance(record, ClusterConfig)), None),
        tuple(record for record in records if isinstance(record, RegistryEntry)),
        tuple(record for record in records if isinstance(record, HostRecord)),
        tuple(record for record in records if isinstance(record, CardRecord)),
        tuple(record for record in records if isinstance(record, HealthRecord)),
        tuple(problems),
        tuple(unreadable),
    )


@functools.lru_cache(maxsize=KEPT_RECORDS)
def _read(key: bytes, value: bytes) -> tuple[schema.RecordKey | None, Record | str | None]:
    """What a pair is, and its record, or why it can't be read.

    Kept, since a gateway reads the same records every second: reading them anew was a third of its work.
    """
    named = schema.parse_key(key)
    if named is None:
        return None, None
    try:
        return named, decode(named, value)
    except codec.RecordError as error:
        return named, str(error)


def decode(key: schema.RecordKey, value: bytes) -> Record:
    """The record that `key` names. Raises RecordError."""
    match key.kind:
        case "config":
            return codec.decode_config(value)
        case "registry":
            return codec.decode_registry(key.name, value)
        case "node":
            return codec.decode_host(key.host, value)
        case "card":
            return codec.decode_card(key.host, key.name, value)
        case "health":
            return codec.decode_health(key.host, key.name, value)
