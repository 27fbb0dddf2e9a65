"""The fleet's records in etcd: read once by a new leader, then written by it alone.

While it leads nobody else writes below `/fleet/`, so what it holds in memory is the truth; every write is
fenced by its leadership, and a leader that lost it can't write any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Tries
from controlplane.model.catalogue import Assignment, ModelSpec, NodeRecord
from controlplane.store import fleet_records as records
from controlplane.store import kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.codec import RecordError
from controlplane.store.election import Leadership, LeadershipLost
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable
from controlplane.store.fleet_records import EngineWanted, FleetRecords
from controlplane.store.writes import fenced_txn

# etcd takes 128 operations in a transaction; there is a compare for each key, and those of the fence. In a
# request it takes 1.5 MiB.
_BATCH = 100
_BATCH_BYTES = 1 << 20
# Records of one read: with the largest there can be, still less than the client takes in one answer.
_PAGE = 64
_TRIES = 4
_READ_SECONDS = 5.0

# A record to write, or None to delete.
Changes = Mapping[bytes, bytes | None]

T = TypeVar("T")


class FleetLedger:
    """The records of one term of leadership. Methods raise LeadershipLost, or StoreError."""

    def __init__(self, client: EtcdClient, fence: Leadership) -> None:
        self._client = client
        self._fence = fence
        self._revisions: dict[bytes, int] = {}
        self.records = FleetRecords()

    @property
    def term(self) -> int:
        """Grows with each leader."""
        return self._fence.term

    def check(self) -> None:
        """Raise LeadershipLost once another process may lead: for commands that no write comes before."""
        if self._fence.lease.lost:
            raise LeadershipLost("the lease of this leader has ended")

    async def load(self) -> None:
        """Read everything. What can't be read is named in `records.problems` and left alone."""
        found = FleetRecords()
        async for pair in self._read_all():
            self._revisions[pair.key] = pair.mod_revision
            try:
                _take(found, pair)
            except RecordError as error:
                found.problems.append(f"record {pair.key.decode('utf-8', 'replace')} is unreadable: {error}")
                kind, name = schema.parse_fleet_key(pair.key) or ("", "")
                if kind == "models":
                    found.unreadable_models.add(name)
        self.records = found

    async def _read_all(self) -> AsyncIterator[pb.KeyValue]:
        """Every record as it was at one revision."""
        begin, end, revision, more = schema.FLEET_PREFIX, kv.prefix_end(schema.FLEET_PREFIX), 0, True
        while more:
            answer = await self._client.range(
                begin, end, limit=_PAGE, revision=revision, seconds=_READ_SECONDS
            )
            for pair in answer.kvs:
                yield pair
                begin = pair.key + b"\0"
            revision, more = revision or answer.header.revision, answer.more

    async def put_model(self, spec: ModelSpec) -> None:
        """Write a model."""
        await self.commit({schema.fleet_model_key(spec.name): records.encode_model(spec)})
        self.records.models[spec.name] = spec
        self.records.unreadable_models.discard(spec.name)

    async def delete_model(self, name: str) -> None:
        """Remove a model."""
        await self.commit({schema.fleet_model_key(name): None})
        self.records.models.pop(name, None)

    async def put_engines(self, engines: tuple[EngineWanted, ...]) -> None:
        """Write what every node should have installed."""
        await self.commit({schema.FLEET_ENGINES_KEY: records.encode_engines(engines)})
        self.records.engines = engines

    async def put_nodes(self, nodes: Sequence[NodeRecord]) -> None:
        """Write nodes."""
        for batch in _batches(nodes):
            await self.commit({schema.fleet_node_key(n.node_id): records.encode_node(n) for n in batch})
            self.records.nodes.update({node.node_id: node for node in batch})

    async def delete_node(self, node_id: str) -> None:
        """Forget a node."""
        await self.commit({schema.fleet_node_key(node_id): None})
        self.records.nodes.pop(node_id, None)

    async def put_assignments(self, assignments: Sequence[Assignment]) -> None:
        """Write replicas' places."""
        written = [(assignment, records.encode_assignment(assignment)) for assignment in assignments]
        for batch in _batches(written, lambda record: len(record[1])):
            await self.commit({schema.fleet_assignment_key(a.replica_id): value for a, value in batch})
            self.records.assignments.update({assignment.replica_id: assignment for assignment, _ in batch})

    async def delete_assignments(self, replicas: Sequence[str]) -> None:
        """Remove replicas' places."""
        for batch in _batches(replicas):
            await self.commit({schema.fleet_assignment_key(replica): None for replica in batch})
            for replica in batch:
                self.records.assignments.pop(replica, None)

    async def put_setbacks(self, setbacks: Mapping[str, Mapping[str, float]]) -> None:
        """Write which nodes these replicas avoid, until when in Unix seconds; none removes the record."""
        for batch in _batches(list(setbacks.items())):
            await self.commit(
                {
                    schema.fleet_setbacks_key(name): records.encode_setbacks(name, nodes) if nodes else None
                    for name, nodes in batch
                }
            )
            for name, nodes in batch:
                self.records.setbacks.pop(name, None)
                if nodes:
                    self.records.setbacks[name] = dict(nodes)

    async def commit(self, changes: Changes) -> None:
        """Make these keys hold these values, in one transaction (at most 100 keys)."""
        operations = [
            kv.delete(key) if value is None else kv.put(key, value) for key, value in changes.items()
        ]
        async for _ in Tries(_TRIES):
            compare = [kv.unchanged(key, self._revisions.get(key, 0)) for key in changes]
            try:
                done = await fenced_txn(self._client, self._fence, compare, operations)
            except OutcomeUnknown:
                done = False
            if await self._reread(changes) or done:
                return
        raise StoreUnavailable("the fleet's records change or answers get lost each time they are written")

    async def _reread(self, changes: Changes) -> bool:
        """Learn the keys' present revisions; whether they hold what was to be written.

        The next compare then makes a late arrival of an earlier try fail.
        """
        keys = list(changes)
        answer = await self._client.txn([], [kv.get(key) for key in keys])
        holds = True
        for key, response in zip(keys, answer.responses, strict=True):
            pair = next(iter(response.response_range.kvs), None)
            self._revisions[key] = pair.mod_revision if pair is not None else 0
            holds = holds and changes[key] == (pair.value if pair is not None else None)
        return holds


def _take(found: FleetRecords, pair: pb.KeyValue) -> None:
    match schema.parse_fleet_key(pair.key):
        case "models", name:
            found.models[name] = records.decode_model(name, pair.value)
        case "assignments", replica:
            found.assignments[replica] = records.decode_assignment(replica, pair.value)
        case "nodes", node:
            found.nodes[node] = records.decode_node(node, pair.value)
        case "setbacks", replica:
            found.setbacks[replica] = records.decode_setbacks(replica, pair.value)
        case "engines", _:
            found.engines = records.decode_engines(pair.value)


def _batches(items: Iterable[T], size: Callable[[T], int] = lambda _: 0) -> Iterator[list[T]]:
    """The items in rows that one transaction takes; `size` is what one is in bytes, where that matters."""
    batch: list[T] = []
    room = _BATCH_BYTES
    for item in items:
        if batch and (len(batch) == _BATCH or size(item) > room):
            yield batch
            batch, room = [], _BATCH_BYTES
        batch.append(item)
        room -= size(item)
    if batch:
        yield batch
