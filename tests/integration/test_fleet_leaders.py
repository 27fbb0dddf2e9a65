"""Changes of the leader over real gRPC and a real etcd: what the next one knows, and what a standby does."""

from __future__ import annotations

import time

import grpc
import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base.pki import Role
from controlplane.fleet import setbacks
from controlplane.fleet.liveness import Limits, NodeState
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, RunningAgent
from tests.support.fleet_scene import agent_of, apply, model, new_leader, until
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("quick_planning")


async def test_what_keeps_failing_on_one_node_runs_on_another_and_the_next_leader_knows(
    host: FleetHost, etcd: EtcdCluster
) -> None:
    async with agent_of(host, gpus=1) as bad, agent_of(host, "gpu-2") as good:
        await bad.connect()
        await bad.hear("ack")
        await good.connect()
        await good.hear("ack")
        bad.hold_starts = True
        await apply(host, model())
        for number in range(1, 4):
            await eventually(lambda n=number: len(bad.starts) == n, f"start {number} came", SECONDS)  # type: ignore[misc]
            await bad.crash("m-0-0")
        moved = await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="gpu-2", failures=0)
        assert moved.reason == "moved here, it kept failing on gpu-1"
        assert moved.generation > bad.starts[-1].generation
        assert len(bad.starts) == 3
        for number in range(1, 3):
            await good.crash("m-0-0")
            await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, failures=number)
        await forgets_nothing(host, etcd, good)


async def forgets_nothing(host: FleetHost, etcd: EtcdCluster, good: RunningAgent) -> None:
    """The next leader knows the node that was left, and the failures in a row on the present one."""
    other = await new_leader(host, etcd)
    try:
        avoided = other.term.reconciler.setbacks["m/0"]
        assert list(avoided) == ["gpu-1"]
        assert 0 < avoided["gpu-1"] - other.term.clock() <= setbacks.AVOID_SECONDS
        async with agent_of(other, "gpu-2", gpus=1, sequence=good.sequence) as again:
            again.shards = good.shards
            await again.connect()
            adopted = await until(other, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="gpu-2", failures=2)
            assert adopted.reason == "moved here, it kept failing on gpu-1"
    finally:
        await other.stop()


async def test_a_new_leader_adopts_what_runs_and_starts_nothing_twice(
    host: FleetHost, etcd: EtcdCluster
) -> None:
    async with agent_of(host, "a") as a, agent_of(host, "b") as b:
        await a.connect()
        await b.connect()
        await apply(host, model(replicas=2))
        before = [await until(host, f"m-{n}-0", pb.SHARD_STATE_RUNNING) for n in (0, 1)]
        other = await new_leader(host, etcd)
        try:
            await eventually(
                lambda: "waits for a, b" in other.term.reconciler.waiting, "it waits for both", SECONDS
            )
            moved = []
            for old in (a, b):
                agent = agent_of(other, old.node_id, sequence=old.sequence)
                agent.shards = old.shards
                await agent.connect()
                moved.append(agent)
            after = [await until(other, f"m-{n}-0", pb.SHARD_STATE_RUNNING) for n in (0, 1)]
            await eventually(lambda: other.term.reconciler.waiting == "", "it places", SECONDS)
            assert [s.generation for s in after] == [s.generation for s in before]
            assert [s.node_id for s in after] == [s.node_id for s in before]
            for agent in moved:
                assert agent.starts == []
                assert agent.of_kind("stop_shard") == []
                await agent.close()
        finally:
            await other.stop()


async def test_a_leader_change_in_the_middle_of_a_start(host: FleetHost, etcd: EtcdCluster) -> None:
    """The shard that was started goes on; the one whose start never came to its node is started anew."""
    async with agent_of(host) as agent:
        agent.hold_starts = True
        await agent.connect()
        await apply(host, model(replicas=2))
        for shard in ("m-0-0", "m-1-0"):
            await until(host, shard, pb.SHARD_STATE_STARTING)
        await eventually(lambda: len(agent.shards) == 2, "both are told", SECONDS)
        del agent.shards["m-1-0"]
        other = await new_leader(host, etcd)
        try:
            async with agent_of(other, sequence=agent.sequence) as again:
                again.shards = agent.shards
                again.hold_starts = True
                await again.connect()
                await eventually(lambda: len(again.starts) == 1, "one is started anew", SECONDS)
                assert again.starts[0].shard_id == "m-1-0"
                assert again.starts[0].generation > agent.starts[1].generation
                await again.serve("m-0-0")
                await again.serve("m-1-0")
                for shard in ("m-0-0", "m-1-0"):
                    await until(other, shard, pb.SHARD_STATE_RUNNING)
                assert len(again.starts) == 1
        finally:
            await other.stop()


async def test_a_new_leader_acts_after_its_grace_when_a_node_does_not_come(
    host: FleetHost, etcd: EtcdCluster
) -> None:
    async with agent_of(host, "a") as a, agent_of(host, "b") as b:
        await a.connect()
        await b.connect()
        await eventually(lambda: len(host.term.ledger.records.nodes) == 2, "both are known", SECONDS)
        limits = Limits(heartbeat=0.5, suspect=60.0, lost=600.0, grace=1.5)
        began = time.monotonic()
        other = await new_leader(host, etcd, limits=limits)
        try:
            async with agent_of(other, "a", sequence=a.sequence) as again:
                await again.connect()
                await apply(other, model())
                await again.hear("start_shard")
                assert time.monotonic() - began >= limits.grace
                await until(other, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="a")
                assert other.term.inventory.nodes["b"].state is NodeState.EXPECTED
        finally:
            await other.stop()


async def test_a_standby_hands_calls_to_the_leader_over_tls(etcd: EtcdCluster) -> None:
    leader, standby = FleetHost("host-1"), FleetHost("host-2")
    await leader.start()
    await standby.start()
    try:
        async with standby.operator() as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="no host leads"):
                await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
        await leader.lead(etcd.endpoints[0])
        standby.follow(leader)
        await eventually(standby.knows_leader, "it knows who leads")
        async with leader.agent() as agent:
            await agent.connect()
            await agent.hear("ack")
            async with standby.operator() as stub:
                answer = await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
                assert (answer.leader, [n.node_id for n in answer.nodes]) == ("host-1", ["gpu-1"])
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.GetNode(fleet_pb2.GetNodeRequest(node_id="x"), timeout=SECONDS)
                assert caught.value.code() is grpc.StatusCode.NOT_FOUND
                assert dict(caught.value.trailing_metadata() or ())["awide-host"] == "host-1"
            async with leader.operator(Role.AGENT, "gpu-1") as stub:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await standby.stop()
        await leader.stop()


async def test_two_hosts_that_take_each_other_for_the_leader_do_not_pass_calls_to_and_fro() -> None:
    one, two = FleetHost("host-1"), FleetHost("host-2")
    await one.start()
    await two.start()
    try:
        one.follow(two)
        two.follow(one)
        for host in (one, two):
            await eventually(host.knows_leader, "both believe it")
        async with one.operator() as stub:
            with pytest.raises(grpc.aio.AioRpcError, match="host-2 does not lead"):
                await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)
    finally:
        await one.stop()
        await two.stop()
