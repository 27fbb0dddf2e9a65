"""The fleet's records in a real etcd: read back, fenced by the leadership, safe against late writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from akv.etcd import etcd_pb2 as etcd_pb

from controlplane.model.catalogue import (
    Assignment,
    CatalogueError,
    ModelSpec,
    NodeRecord,
    Place,
    Profile,
    check_model,
)
from controlplane.store import fleet as fleet_store
from controlplane.store import fleet_records, kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership, LeadershipLost, campaign
from controlplane.store.errors import OutcomeUnknown
from controlplane.store.fleet import FleetLedger
from controlplane.store.fleet_records import EngineWanted
from controlplane.store.lease import Lease
from controlplane.store.writes import fenced_txn
from tests.support.etcd import EtcdCluster

PROFILE = Profile(
    "p", "vllm", "0.11", ("--a", "{port}"), {"KEY": "v"}, 2, "H100", 1, 2, 3, "ib0", True, "w", 9, "/h", 5.0
)
MODEL = ModelSpec("m", 3, (PROFILE,), 4)
ASSIGNMENT = Assignment("m/0", "m", PROFILE, (Place("m-0-0", "gpu-1", 0, ("a", "b"), 7, 2),), "it leaves")


@pytest_asyncio.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    async with EtcdClient([etcd.endpoints[0]], call_seconds=5.0) as client:
        yield client


async def lead(client: EtcdClient, name: str = "host-1") -> Leadership:
    won = await campaign(client, await Lease.grant(client, 60), name)
    assert won is not None
    return won


async def test_a_new_leader_reads_what_the_last_one_wrote(client: EtcdClient) -> None:
    first = await lead(client)
    ledger = FleetLedger(client, first)
    await ledger.load()
    nodes = [NodeRecord(f"gpu-{n}", n + 1, draining=n == 1, lost=n == 2) for n in range(250)]
    await ledger.put_model(MODEL)
    await ledger.put_assignments([ASSIGNMENT])
    await ledger.put_nodes(nodes)
    await ledger.put_engines((EngineWanted("vllm", "1", "cuda"),))
    avoided = {f"m/{n}": {"gpu-1": 1e9 + n + 0.5, "gpu-2": 2e9} for n in range(150)}
    await ledger.put_setbacks(avoided)
    await ledger.put_setbacks({"m/0": {"gpu-2": 2e9}, "m/1": {}})
    avoided = {**avoided, "m/0": {"gpu-2": 2e9}}
    del avoided["m/1"]
    assert ledger.records.setbacks == avoided
    await first.lease.close()
    with pytest.raises(LeadershipLost):
        await ledger.put_setbacks({"m/2": {}})
    second = await lead(client, "host-2")
    read = FleetLedger(client, second)
    await read.load()
    assert read.records.models == {"m": MODEL}
    assert read.records.assignments == {"m/0": ASSIGNMENT}
    assert sorted(read.records.nodes.values(), key=lambda n: n.incarnation) == nodes
    assert read.records.setbacks == avoided
    assert read.records.engines == (EngineWanted("vllm", "1", "cuda"),)
    assert read.term > ledger.term
    await read.delete_model("m")
    await read.delete_assignments(["m/0"])
    await read.delete_node("gpu-7")
    await read.load()
    assert (read.records.models, read.records.assignments) == ({}, {})
    assert len(read.records.nodes) == 249
    await second.lease.close()


async def test_many_large_records_are_written_and_read_back(client: EtcdClient) -> None:
    """Together they are more than etcd takes in a request, and than the client takes in an answer."""
    words = tuple(f"{n:03}" + "\x01" * 4000 for n in range(32))  # a control character is six in JSON
    model = check_model(ModelSpec("m", 120, (Profile("p", "vllm", arguments=words),)))
    assignments = {
        name: Assignment(name, "m", model.profiles[0], (Place(f"m-{n}-0", "gpu-1", 0, ()),))
        for n, name in enumerate(model.replica_ids())
    }
    leadership = await lead(client)
    ledger = FleetLedger(client, leadership)
    await ledger.load()
    await ledger.put_model(model)
    await ledger.put_assignments(list(assignments.values()))
    read = FleetLedger(client, leadership)
    await read.load()
    assert read.records.problems == []
    assert read.records.assignments == assignments
    await ledger.delete_assignments(list(assignments))
    await leadership.lease.close()
    with pytest.raises(CatalogueError, match="its texts are 132000 bytes"):
        check_model(replace(model, profiles=(replace(model.profiles[0], arguments=("x" * 4000,) * 33),)))


async def test_who_lost_the_leadership_writes_nothing(client: EtcdClient) -> None:
    leadership = await lead(client)
    ledger = FleetLedger(client, leadership)
    await ledger.load()
    await leadership.lease.close()
    other = await lead(client, "host-2")
    with pytest.raises(LeadershipLost):
        ledger.check()
    with pytest.raises(LeadershipLost):
        await ledger.put_model(MODEL)
    assert ledger.records.models == {}
    assert await client.get(schema.fleet_model_key("m")) is None
    await other.lease.close()


async def test_an_unreadable_record_is_named_and_left_alone(client: EtcdClient) -> None:
    await client.txn([], [kv.put(schema.fleet_model_key("bad"), b'{"name": 3}')])
    await client.txn([], [kv.put(schema.fleet_model_key("m"), fleet_records.encode_model(MODEL))])
    await client.txn([], [kv.put(b"/fleet/later/x", b"of a later version")])
    await client.txn([], [kv.put(schema.fleet_setbacks_key("m/0"), b'{"replica_id": "m/1", "nodes": []}')])
    leadership = await lead(client)
    ledger = FleetLedger(client, leadership)
    await ledger.load()
    assert list(ledger.records.models) == ["m"]
    assert len(ledger.records.problems) == 2
    assert "/fleet/models/bad" in ledger.records.problems[0]
    assert "replica_id is 'm/1', not that of its key" in ledger.records.problems[1]
    assert ledger.records.setbacks == {}
    assert ledger.records.unreadable_models == {"bad"}
    assert (await client.get(schema.fleet_model_key("bad"))) is not None
    await ledger.put_model(replace(MODEL, name="bad"))
    assert ledger.records.unreadable_models == set()
    await leadership.lease.close()


@pytest.mark.parametrize("happened", [True, False])
async def test_a_write_without_an_answer_is_resolved_by_reading(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """The answer of the first try is lost, whether or not it was written."""
    leadership = await lead(client)
    ledger = FleetLedger(client, leadership)
    await ledger.load()
    real = fenced_txn
    tries = 0

    async def lossy(
        client: EtcdClient,
        fence: Leadership,
        compare: Sequence[etcd_pb.Compare],
        success: Sequence[etcd_pb.RequestOp],
    ) -> bool:
        nonlocal tries
        tries += 1
        if tries > 1:
            return await real(client, fence, compare, success)
        if happened:
            await real(client, fence, compare, success)
        raise OutcomeUnknown("lost")

    monkeypatch.setattr(fleet_store, "fenced_txn", lossy)
    await ledger.put_model(MODEL)
    assert tries == (1 if happened else 2)
    pair = await client.get(schema.fleet_model_key("m"))
    assert pair is not None
    assert pair.value == fleet_records.encode_model(MODEL)
    await leadership.lease.close()


async def test_a_try_that_arrives_late_changes_nothing(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that was given up arrives after the record was written anew."""
    leadership = await lead(client)
    ledger = FleetLedger(client, leadership)
    await ledger.load()
    real = fenced_txn
    kept: list[Any] = []

    async def delayed(*arguments: Any) -> bool:
        if not kept:
            kept.append(arguments)
            raise OutcomeUnknown("still on its way")
        return await real(*arguments)

    monkeypatch.setattr(fleet_store, "fenced_txn", delayed)
    await ledger.put_model(MODEL)
    newer = ModelSpec("m", 9, (PROFILE,), 5)
    await ledger.put_model(newer)
    assert await real(*kept[0]) is False
    pair = await client.get(schema.fleet_model_key("m"))
    assert pair is not None
    assert fleet_records.decode_model("m", pair.value) == newer
    await leadership.lease.close()
