"""Membership steps against a real etcd: recorded, fenced, put off when things have changed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.cluster.quorum import AddLearner, Remove
from controlplane.cluster.steps import carry_out, clear_left_step
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership, LeadershipLost, campaign
from controlplane.store.errors import OutcomeUnknown
from controlplane.store.lease import Lease
from controlplane.store.membership import list_members, remove_member
from controlplane.store.step import MembershipStep, begin_step, read_step
from tests.support.addresses import LoopbackNet
from tests.support.etcd import EtcdCluster
from tests.support.procs import Program, python_environment


@pytest.fixture
async def client(etcd: EtcdCluster) -> AsyncIterator[EtcdClient]:
    async with EtcdClient(etcd.endpoints, call_seconds=2.0) as client:
        yield client


async def lead(client: EtcdClient, ttl: int = 20) -> Leadership:
    lease = await Lease.grant(client, ttl)
    leadership = await campaign(client, lease, "h1")
    assert leadership is not None
    return leadership


# A leader that is suspended between its last check and the call itself.
SUSPENDED_LEADER = """
import asyncio, os, signal, sys
from controlplane.cluster.quorum import AddLearner
from controlplane.cluster.steps import carry_out
from controlplane.store.client import EtcdClient
from controlplane.store.election import LeadershipLost, campaign
from controlplane.store.lease import Lease
from controlplane.store.membership import list_members

class Suspended(EtcdClient):
    async def write(self, rpc, request, seconds=None):
        if type(request).__name__ == "MemberAddRequest":
            print("decided", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return await super().write(rpc, request, seconds)

async def main():
    endpoint, url = sys.argv[1:]
    async with Suspended([endpoint], call_seconds=2.0) as client:
        leadership = await campaign(client, await Lease.grant(client, 5), "former")
        try:
            seen = await list_members(client)
            print("said", await carry_out(client, leadership, AddLearner("h9", url), seen))
        except LeadershipLost as error:
            print("lost", error, flush=True)

asyncio.run(main())
"""


LEFT = MembershipStep("left", "add", "h9", 0, "http://127.0.0.9:2380", (1,))


async def test_a_step_is_done_and_its_record_cleared(client: EtcdClient, loopback_net: LoopbackNet) -> None:
    leadership = await lead(client)
    url = f"http://{loopback_net.host(9)}:2380"
    said = await carry_out(client, leadership, AddLearner("h9", url), await list_members(client))
    try:
        assert said == "add of h9 done"
        assert await read_step(client) is None
        added = next(m for m in await list_members(client) if url in m.peer_urls)
        assert added.learner
    finally:
        for member in await list_members(client):
            if url in member.peer_urls:
                await remove_member(client, member.id)
        await leadership.lease.close()


class LosesLastAnswer(EtcdClient):
    """Hears nothing of the transaction that takes the step's record away, though it is carried out."""

    async def txn(self, compare: Any, success: Any, failure: Any = (), **options: Any) -> Any:
        answer = await super().txn(compare, success, failure, **options)
        if any(operation.HasField("request_delete_range") for operation in success):
            raise OutcomeUnknown("no answer")
        return answer


async def test_a_step_that_was_made_is_told_though_its_record_could_not_be_cleared(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    url = f"http://{loopback_net.host(9)}:2380"
    async with LosesLastAnswer(etcd.endpoints, call_seconds=2.0) as client:
        leadership = await lead(client)
        said = await carry_out(client, leadership, AddLearner("h9", url), await list_members(client))
        added = next(m for m in await list_members(client) if url in m.peer_urls)
        await remove_member(client, added.id)
        await leadership.lease.close()
    assert said == "add of h9 done; its record stays for the next cycle (no answer)"


async def test_a_changed_member_list_puts_the_step_off(client: EtcdClient, loopback_net: LoopbackNet) -> None:
    leadership = await lead(client)
    seen = [replace(member, id=member.id + 1) for member in await list_members(client)]
    said = await carry_out(client, leadership, AddLearner("h9", f"http://{loopback_net.host(9)}:2380"), seen)
    assert "members changed" in said
    assert len(await list_members(client)) == 1
    assert await read_step(client) is None
    await leadership.lease.close()


async def test_a_member_that_answers_again_is_not_removed(client: EtcdClient) -> None:
    leadership = await lead(client)
    seen = await list_members(client)
    step = Remove(seen[0].id, "etcd-1", "silent", must_be_silent=True)
    assert "the member answers" in await carry_out(client, leadership, step, seen)
    assert await list_members(client) == seen
    await leadership.lease.close()


async def test_a_lease_that_ends_too_soon_puts_the_step_off(
    client: EtcdClient, loopback_net: LoopbackNet
) -> None:
    leadership = await lead(client, ttl=2)
    url = f"http://{loopback_net.host(9)}:2380"
    said = await carry_out(client, leadership, AddLearner("h9", url), await list_members(client))
    assert "lease is too short" in said
    assert len(await list_members(client)) == 1
    await leadership.lease.close()


async def test_who_does_not_lead_any_more_can_not_begin(
    client: EtcdClient, loopback_net: LoopbackNet
) -> None:
    former = await lead(client)
    await former.lease.close()
    url = f"http://{loopback_net.host(9)}:2380"
    with pytest.raises(LeadershipLost):
        await carry_out(client, former, AddLearner("h9", url), await list_members(client))
    assert len(await list_members(client)) == 1


async def test_a_left_step_blocks_until_the_new_leader_clears_it(
    client: EtcdClient, loopback_net: LoopbackNet
) -> None:
    leadership = await lead(client)
    assert await begin_step(client, leadership, LEFT)
    url = f"http://{loopback_net.host(8)}:2380"
    said = await carry_out(client, leadership, AddLearner("h8", url), await list_members(client))
    assert "another step is in progress" in said
    await clear_left_step(client, leadership)
    assert await read_step(client) is None
    await leadership.lease.close()


async def test_a_leader_that_was_suspended_before_its_call_does_not_make_it_when_it_wakes(
    etcd: EtcdCluster, client: EtcdClient, loopback_net: LoopbackNet
) -> None:
    url = f"http://{loopback_net.host(9)}:2380"
    command = [sys.executable, "-c", SUSPENDED_LEADER, etcd.endpoints[0], url]
    with Program(command, env=python_environment()) as former:
        await asyncio.to_thread(former.wait_line, "decided", 30.0)
        assert await read_step(client) is not None, "what it was about to do stands written"
        leadership = await next_leader(client)
        await clear_left_step(client, leadership)
        former.resume()
        await asyncio.to_thread(former.wait_exit, 30.0)  # the loss of its lease is told before it would call
        try:
            assert any("add of h9 is not made" in line for line in former.lines), former.tail()
            assert len(await list_members(client)) == 1, "the step of a leader that is none was not made"
            assert await read_step(client) is None
        finally:
            for member in await list_members(client):
                if member.learner:
                    await remove_member(client, member.id)
            await leadership.lease.close()


async def next_leader(client: EtcdClient) -> Leadership:
    """Lead once the former leader's lease has ended."""
    lease = await Lease.grant(client, 20)
    async with asyncio.timeout(30):
        while True:
            leadership = await campaign(client, lease, "next")
            if leadership is not None:
                return leadership
            await asyncio.sleep(0.1)


async def test_a_raft_leader_that_is_removed_hands_raft_over_first(
    etcd_cluster: EtcdCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    leaving = etcd_cluster.leader()
    async with EtcdClient(etcd_cluster.endpoints, call_seconds=5.0) as client:
        leadership = await lead(client, 60)
        seen = await list_members(client)
        member = next(m for m in seen if leaving.peer_url in m.peer_urls)
        step = Remove(member.id, leaving.name, "test", must_be_silent=False)
        async with asyncio.timeout(60):  # etcd calls itself unhealthy for some seconds after a start
            while len(await list_members(client)) == 3:
                await clear_left_step(client, leadership)  # of an answer that came too late, as a leader does
                await carry_out(client, leadership, step, seen)
        await leadership.lease.close()
    told = capfd.readouterr().out
    assert "raft leadership handed over" in told.partition("membership step done")[0]
