"""Membership and maintenance calls against a real etcd."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from akv.etcd import etcd_pb2 as pb

from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import Refusal, RequestRefused, StoreUnavailable
from controlplane.store.lease import Lease
from controlplane.store.membership import (
    Member,
    add_learner,
    compact,
    defragment,
    disarm,
    list_alarms,
    list_members,
    member_status,
    promote_member,
    remove_member,
)
from tests.support.addresses import LoopbackNet
from tests.support.etcd import EtcdCluster, run_etcd


async def add_when_healthy(client: EtcdClient, peer_url: str) -> tuple[Member, list[Member]]:
    """etcd calls itself unhealthy for some seconds after a start."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await add_learner(client, peer_url)
            except StoreUnavailable as error:
                assert "unhealthy cluster" in str(error)  # noqa: PT017
                await asyncio.sleep(0.2)


async def fill(client: EtcdClient) -> None:
    for _ in range(100):
        await client.txn([], [kv.put(b"/big", b"x" * 100_000)])


async def test_a_learner_is_added_refused_and_removed(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with run_etcd(tmp_path, net=loopback_net) as cluster:
        async with EtcdClient(cluster.endpoints, call_seconds=5.0) as client:
            (voter,) = await list_members(client)
            assert (voter.started, voter.learner, voter.peer_urls) == (
                True,
                False,
                (cluster.members[0].peer_url,),
            )
            peer = f"http://{loopback_net.host(2)}:2380"
            learner, members = await add_when_healthy(client, peer)
            assert (learner.started, learner.learner, learner.peer_urls) == (False, True, (peer,))
            assert {member.id for member in members} == {voter.id, learner.id}
            third = f"http://{loopback_net.host(3)}:2380"
            refusals: list[tuple[Callable[[], Awaitable[object]], set[Refusal]]] = [
                (lambda: promote_member(client, learner.id), {Refusal.LEARNER_NOT_READY}),
                (lambda: promote_member(client, voter.id), {Refusal.NOT_A_LEARNER}),
                # An id is made of URL and second, so the first of the two comes within one second.
                (lambda: add_learner(client, peer), {Refusal.MEMBER_EXISTS, Refusal.PEER_URL_EXISTS}),
                (lambda: add_learner(client, third), {Refusal.TOO_MANY_LEARNERS}),
                (lambda: remove_member(client, 12345), {Refusal.MEMBER_NOT_FOUND}),
            ]
            for call, expected in refusals:
                with pytest.raises(RequestRefused) as caught:
                    await call()
                assert caught.value.refusal in expected
            assert [member.id for member in await remove_member(client, learner.id)] == [voter.id]


async def test_status_is_of_the_member_that_was_asked(etcd_cluster: EtcdCluster) -> None:
    async with EtcdClient(etcd_cluster.endpoints, call_seconds=5.0) as client:
        statuses = [await member_status(client, endpoint) for endpoint in client.endpoints]
        assert len({status.member_id for status in statuses}) == 3
        assert len({(status.cluster_id, status.leader_id) for status in statuses}) == 1
        assert statuses[0].version.startswith("3.")
        assert statuses[0].leader_id
        victim = etcd_cluster.follower()
        victim.running.kill()
        with pytest.raises(StoreUnavailable):
            await member_status(client, victim.endpoint)
        assert len(await list_members(client, linearizable=False)) == 3


async def test_no_space_is_an_outage_that_compaction_and_disarming_end(tmp_path: Path) -> None:
    with run_etcd(tmp_path, flags=("--quota-backend-bytes", str(1 << 20))) as cluster:
        async with EtcdClient(cluster.endpoints, call_seconds=5.0) as client:
            with pytest.raises(StoreUnavailable, match="space exceeded"):
                await fill(client)
            with pytest.raises(StoreUnavailable, match="space exceeded"):
                await Lease.grant(client, 5)
            (alarm,) = await list_alarms(client)
            assert alarm.kind == "NOSPACE"
            answer = await client.range(b"/big")
            await compact(client, answer.header.revision)
            await defragment(client, client.endpoints[0])
            await disarm(client, alarm)
            await disarm(client, alarm)
            assert await list_alarms(client) == []
            assert (await client.txn([], [kv.put(b"/small", b"x")])).succeeded
            with pytest.raises(RequestRefused) as caught:
                await client.read(lambda e: e.kv.Range, pb.RangeRequest(key=b"/big", revision=2))
            assert caught.value.refusal is Refusal.COMPACTED
