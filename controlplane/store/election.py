"""The election: one key under a lease. Who created it leads, and each write of the leader proves it."""

from __future__ import annotations

from dataclasses import dataclass

from akv.etcd import etcd_pb2 as pb

from controlplane.store import kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreError
from controlplane.store.lease import Lease


class LeadershipLost(StoreError):
    """The leader key is not ours any more; nothing was written."""


@dataclass(frozen=True, slots=True)
class LeaderInfo:
    """Who leads, as anyone can read it. `term` (the key's create revision) grows with each new leader."""

    name: str
    term: int


@dataclass(frozen=True, slots=True)
class Leadership:
    """Proof that this process leads: its lease and the create revision of the leader key."""

    lease: Lease
    term: int

    def compares(self) -> list[pb.Compare]:
        """Conditions that hold only while the leader key is ours."""
        return [kv.created_at(schema.LEADER_KEY, self.term), kv.has_lease(schema.LEADER_KEY, self.lease.id)]

    def is_held_by(self, pair: pb.KeyValue) -> bool:
        """Whether `pair` is our leader key."""
        return pair.create_revision == self.term and pair.lease == self.lease.id

    def outlives(self, seconds: float) -> bool:
        """Whether the lease certainly holds for another `seconds`: for acts that no transaction fences."""
        return self.lease.remaining() >= seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """What one host knows of the election: its own leadership, or else who leads.

    `client` is there while the host is in a cluster; `leader_api` (ADDR:PORT) is empty while it is not known.
    `revoked` are the names whose certificates are refused.
    """

    client: EtcdClient | None = None
    leadership: Leadership | None = None
    leader: str = ""
    leader_api: str = ""
    revoked: frozenset[str] = frozenset()

    @property
    def leads(self) -> bool:
        """Whether this host leads, and its lease still holds."""
        return self.leadership is not None and not self.leadership.lease.lost


async def campaign(client: EtcdClient, lease: Lease, name: str) -> Leadership | None:
    """Take the leader key if it is free (or ours already); None when another process has it.

    `name` is what others read, usually the host name. Raises StoreError.
    """
    value = name.encode()
    try:
        answer = await client.txn(
            [kv.absent(schema.LEADER_KEY)],
            [kv.put(schema.LEADER_KEY, value, lease.id)],
            [kv.get(schema.LEADER_KEY)],
        )
    except OutcomeUnknown:
        pair = await client.get(schema.LEADER_KEY)
    else:
        if answer.succeeded:
            return Leadership(lease, answer.header.revision)
        found = answer.responses[0].response_range.kvs
        pair = found[0] if found else None
    if pair is None or pair.lease != lease.id:
        return None
    return Leadership(lease, pair.create_revision)


async def resign(client: EtcdClient, leadership: Leadership) -> None:
    """Give the leader key back at once, if it is still ours. Raises StoreError."""
    await client.txn(leadership.compares(), [kv.delete(schema.LEADER_KEY)])


async def read_leader(client: EtcdClient, *, seconds: float | None = None) -> LeaderInfo | None:
    """Who leads now; None when no one does. Raises StoreError."""
    pair = await client.get(schema.LEADER_KEY, seconds=seconds)
    if pair is None:
        return None
    return LeaderInfo(pair.value.decode("utf-8", "replace"), pair.create_revision)
