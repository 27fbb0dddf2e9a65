"""The cluster reader inside the test's own loop, against a real etcd and real GetMembers servers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from controlplane.base.addresses import HostPort
from controlplane.gateway.members import MemberSource
from controlplane.gateway.reader import ClusterReader
from controlplane.model.debounce import PollLimits
from controlplane.model.view import Decision, GatewayView
from tests.support.addresses import LoopbackNet
from tests.support.cluster_records import ClusterRecords
from tests.support.etcd import EtcdCluster
from tests.support.grpc_peers import ClusterHost


class Reading:
    """A reader over two hosts of one cluster with one card."""

    def __init__(self, etcd: EtcdCluster, net: LoopbackNet) -> None:
        self.records = ClusterRecords(etcd.members[0], str(uuid4()))
        self.records.create()
        self.records.join("L0P0")
        self.hosts = [ClusterHost(net.host(n), self.records.uuid, etcd.endpoints) for n in (1, 2)]
        self.view = GatewayView(PollLimits(), 128)
        self.wake = asyncio.Event()
        source = MemberSource([HostPort(host.address, host.port) for host in self.hosts], 15.0)
        self.reader = ClusterReader(source, self.view, 15.0, self.wake)
        self.now = 0.0

    async def poll(self) -> Decision:
        self.now += 1.0
        return await self.reader.read(self.now, True)

    async def close(self) -> None:
        await self.reader.close()
        for host in self.hosts:
            host.stop()


@pytest.fixture
async def reading(etcd: EtcdCluster, loopback_net: LoopbackNet) -> AsyncIterator[Reading]:
    reading = Reading(etcd, loopback_net)
    yield reading
    await reading.close()


def texts(decision: Decision) -> list[str]:
    return [event.text for event in decision.events]


async def test_a_host_in_use_that_changes_its_cluster_is_told_and_left(reading: Reading) -> None:
    assert (await reading.poll()).stale is None
    reading.hosts[0].uuid = str(uuid4())
    await reading.reader.refresh_members()
    assert texts(await reading.poll()) == ["Cluster stale", "Cluster answered again"]
    await reading.reader.refresh_members()
    assert texts(await reading.poll()) == []


async def test_members_that_are_known_stay_in_use_when_no_host_answers(reading: Reading) -> None:
    await reading.poll()
    for host in reading.hosts:
        host.stop()
    await reading.reader.refresh_members()
    assert (await reading.poll()).stale is None


async def test_every_change_below_the_cluster_wakes(reading: Reading) -> None:
    await reading.poll()
    for number in range(3):
        reading.wake.clear()
        await asyncio.to_thread(reading.records.join, f"L1P{number}")
        async with asyncio.timeout(30):
            await reading.wake.wait()


async def test_many_refreshes_leave_no_connection_behind(reading: Reading) -> None:
    await reading.poll()
    for _ in range(20):
        await reading.reader.refresh_members()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        await reading.reader.refresh_members()
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    assert reading.hosts[0].asked == 221


async def test_changes_of_host_leave_no_session_behind(reading: Reading) -> None:
    """Whole sessions, client and watch, come and go while hosts take turns in being another cluster's."""
    await reading.poll()
    await reading.reader.close()
    before = len(os.listdir("/proc/self/fd"))
    tasks = len(asyncio.all_tasks())
    for _ in range(30):
        assert (await reading.poll()).stale is None
        await reading.reader.close()
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    assert len(asyncio.all_tasks()) <= tasks + 1
