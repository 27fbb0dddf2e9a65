"""Leases against a real etcd."""

import asyncio

from akv.etcd import etcd_pb2 as pb

from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.lease import Lease
from controlplane.store.watch import Changes, Watch
from tests.support.addresses import LoopbackNet
from tests.support.blackhole import black_hole
from tests.support.etcd import EtcdCluster
from tests.support.waiting import eventually


async def test_kept_alive_past_its_time_and_revoked_at_the_end(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        lease = await Lease.grant(client, 3)
        await client.txn([], [kv.put(b"/l", b"1", lease.id)])
        assert lease.remaining() <= 3.0
        await asyncio.sleep(3.6)
        assert not lease.lost
        assert await client.get(b"/l") is not None
        await lease.close()
        assert lease.lost
        assert lease.remaining() == 0.0
        assert await client.get(b"/l") is None


async def test_a_lease_that_etcd_dropped_is_lost(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        lease = await Lease.grant(client, 2)
        await client.write(lambda e: e.lease.LeaseRevoke, pb.LeaseRevokeRequest(id=lease.id))
        await eventually(lambda: lease.lost, "the lease is lost")
        assert lease.lost
        await lease.close()


async def test_a_lease_is_lost_by_our_own_clock_when_etcd_is_silent(etcd_cluster: EtcdCluster) -> None:
    async with EtcdClient(etcd_cluster.endpoints) as client:
        lease = await Lease.grant(client, 2, seconds=5.0)
        for member in etcd_cluster.members:
            member.running.suspend()
        await eventually(lambda: lease.lost, "the lease is lost")
        for member in etcd_cluster.members:
            member.running.resume()
        await lease.close(revoke=False)


async def test_closed_without_revoking_the_keys_stay_until_it_expires(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        lease = await Lease.grant(client, 2)
        await client.txn([], [kv.put(b"/l", b"1", lease.id)])
        await lease.close(revoke=False)
        assert await client.get(b"/l") is not None
        revision = (await client.range(b"/l")).header.revision
        async with Watch(client, [b"/l"], revision + 1) as changes, asyncio.timeout(60):
            gone = await anext(changes)
        assert isinstance(gone, Changes)
        assert [(change.key, change.value) for change in gone.changes] == [(b"/l", None)]


async def test_a_lease_outlives_the_replacement_and_renewal_of_its_channels(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
            lease = await Lease.grant(client, 3)
            client.set_endpoints([silent, *etcd.endpoints])
            await asyncio.sleep(2.0)
            client.set_endpoints(etcd.endpoints)
            await asyncio.sleep(1.5)
            assert not lease.lost
            await lease.close()
