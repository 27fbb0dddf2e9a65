"""`/cluster/joins/<host>`: hosts without a member that asked for one; the leader takes them in that order."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from controlplane.store import codec, kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership
from controlplane.store.writes import delete_key, put_if_changed

JOINS_PREFIX = schema.CLUSTER_PREFIX + b"joins/"


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """One request. `replaces` is the id of the member whose data the host lost; 0 when it never had one."""

    host: str
    peer_url: str
    replaces: int = 0


def _key(host: str) -> bytes:
    return JOINS_PREFIX + quote(host, safe="").encode("ascii")


async def read_joins(client: EtcdClient) -> tuple[JoinRecord, ...]:
    """All requests, in the order in which they were made. Raises StoreError, or RecordError."""
    answer = await client.range(JOINS_PREFIX, kv.prefix_end(JOINS_PREFIX))
    pairs = sorted(answer.kvs, key=lambda pair: pair.create_revision)
    return tuple(_decode(pair.key, pair.value) for pair in pairs)


async def write_join(client: EtcdClient, record: JoinRecord) -> bool:
    """Make or change a host's request; True when that took a write. Raises StoreError."""
    value = codec.encode({"peer_url": record.peer_url, "replaces": record.replaces})
    return await put_if_changed(client, _key(record.host), value)


async def clear_join(client: EtcdClient, host: str, fence: Leadership | None = None) -> bool:
    """Remove a host's request; True when there was one. Raises LeadershipLost, or StoreError."""
    return await delete_key(client, _key(host), fence)


def _decode(key: bytes, value: bytes) -> JoinRecord:
    fields = codec.Fields(value)
    host = unquote(key.removeprefix(JOINS_PREFIX).decode("ascii", "replace"))
    return JoinRecord(host, fields.text("peer_url"), fields.integer("replaces", 0, 2**64 - 1))
