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
    """One request. `replaces` is the id of the member whose data the host lost; 0 when it never had one.

    With `refused` it is no request any more: it says why the host's last place was taken back, until the host
    asks again.
    """

    host: str
    peer_url: str
    replaces: int = 0
    refused: str = ""


def _key(host: str) -> bytes:
    return JOINS_PREFIX + quote(host, safe="").encode("ascii")


async def read_joins(client: EtcdClient) -> tuple[JoinRecord, ...]:
    """All requests, in the order in which they were made. Raises StoreError, or RecordError."""
    answer = await client.range(JOINS_PREFIX, kv.prefix_end(JOINS_PREFIX))
    pairs = sorted(answer.kvs, key=lambda pair: pair.create_revision)
    return tuple(_decode(pair.key, pair.value) for pair in pairs)


async def write_join(client: EtcdClient, record: JoinRecord, fence: Leadership | None = None) -> bool:
    """Make or change a host's request; True when that took a write.

    A request that was refused is made anew, behind those of other hosts. Raises LeadershipLost, StoreError.
    """
    pair = await client.get(_key(record.host))
    if pair is not None and not record.refused and _decode(pair.key, pair.value).refused:
        await clear_join(client, record.host, fence)
    fields: dict[str, object] = {"peer_url": record.peer_url, "replaces": record.replaces}
    if record.refused:
        fields["refused"] = record.refused
    return await put_if_changed(client, _key(record.host), codec.encode(fields), fence)


async def read_join(client: EtcdClient, host: str) -> JoinRecord | None:
    """One host's request. Raises StoreError, or RecordError."""
    pair = await client.get(_key(host))
    return None if pair is None else _decode(pair.key, pair.value)


async def clear_join(client: EtcdClient, host: str, fence: Leadership | None = None) -> bool:
    """Remove a host's request; True when there was one. Raises LeadershipLost, or StoreError."""
    return await delete_key(client, _key(host), fence)


def _decode(key: bytes, value: bytes) -> JoinRecord:
    fields = codec.Fields(value)
    host = unquote(key.removeprefix(JOINS_PREFIX).decode("ascii", "replace"))
    replaces = fields.integer("replaces", 0, 2**64 - 1)
    return JoinRecord(host, fields.text("peer_url"), replaces, fields.optional_text("refused"))
