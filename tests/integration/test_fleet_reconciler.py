"""Placement over real gRPC and a real etcd: where shards go, starts, crashes, drains, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.fleet import commands, life
from controlplane.model.catalogue import Assignment, ModelSpec
from tests.support.etcd import EtcdCluster
from tests.support.fleet import SECONDS, FleetHost, RunningAgent, leading
from tests.support.fleet_scene import agent_of, apply, model, until
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("quick_planning")


async def test_a_model_is_placed_started_and_left_alone(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        await agent.connect()
        assert (await apply(host, model(replicas=2, arguments=["--port", "{port}"]))).changed
        for shard in ("m-0-0", "m-1-0"):
            running = await until(host, shard, pb.SHARD_STATE_RUNNING)
            assert running.address == "127.0.0.1:8000"
        starts = {start.shard_id: start for start in agent.starts}
        assert [*starts["m-0-0"].gpu_uuids, *starts["m-1-0"].gpu_uuids] == ["gpu-1-gpu0", "gpu-1-gpu1"]
        assert list(starts["m-0-0"].arguments) == ["--port", "{port}"]
        assert not (await apply(host, model(replicas=2, arguments=["--port", "{port}"]))).changed
        assert len(agent.starts) == 2


GIB = 1 << 30


def on(*fabrics: str) -> pb.FabricsReport:
    return pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric=name) for name in fabrics])


async def test_a_shard_goes_where_engine_memory_fabric_and_healthy_gpus_are(host: FleetHost) -> None:
    """Four nodes, and for each model one place that fits."""
    one, two = (pb.EnginesReport(versions={"vllm": version}) for version in ("1", "2"))
    async with (
        agent_of(host, "a") as a,
        agent_of(host, "b") as b,
        agent_of(host, "c") as c,
        agent_of(host, "d", gpus=0) as d,
    ):
        await a.connect(fabrics=on("ib0"), engines=one)
        await b.connect(
            fabrics=on("ib0"),
            engines=two,
            memory_total_bytes=64 * GIB,
            problems=[pb.Problem(text="ecc", gpu_index=0)],
        )
        await c.connect(fabrics=on("ib1"), engines=pb.EnginesReport(versions={"sglang": "1"}))
        await d.connect(engines=one)
        for agent in (a, d):  # a node's problem costs its first GPU, and a node without GPUs nothing
            await agent.hear("ack")
            await agent.say(heartbeat=pb.Heartbeat(new_problems=[pb.Problem(text="xid 79")]))
            node = host.term.inventory.nodes[agent.node_id]
            await eventually(lambda node=node: node.facts is not None and node.facts.problems, "known")  # type: ignore[misc]
        wanted: dict[str, tuple[dict[str, Any], RunningAgent, list[str]]] = {
            "health": ({"engine_version": "1"}, a, ["a-gpu1"]),
            "version": ({"engine_version": "2"}, b, ["b-gpu1"]),
            "engine": ({"engine": "sglang"}, c, ["c-gpu0"]),
            "memory": ({"gpus": 0, "fabric": "ib0", "memory_bytes": 128 * GIB}, a, []),
            "fabric": ({"engine": "process", "fabric": "ib1"}, c, ["c-gpu1"]),
        }
        for name, (profile, agent, gpus) in wanted.items():
            await apply(host, model(name, **profile))
            await until(host, f"{name}-0-0", pb.SHARD_STATE_RUNNING, node_id=agent.node_id)
            assert list(agent.starts[-1].gpu_uuids) == gpus
        await apply(host, model("wide", engine="process", gpus=0, nodes=2, port=9000))
        ranks = [await until(host, f"wide-0-{rank}", pb.SHARD_STATE_RUNNING) for rank in (0, 1)]
        assert {shard.node_id for shard in ranks} == {"a", "b"}
        await check_room_that_is_gone(host, c)


async def check_room_that_is_gone(host: FleetHost, c: RunningAgent) -> None:
    """All GPUs are taken now, and then a fabric is lost."""
    await apply(host, model("more", engine="process", gpus=1))
    full = "profile p: nodes: 4 with too few free GPUs that fit"
    await eventually(lambda: host.term.reconciler.unplaced.get("more/0") == full, "all are full", SECONDS)
    await c.say(heartbeat=pb.Heartbeat(fabrics=pb.FabricsReport()))
    node = host.term.inventory.nodes["c"]
    await eventually(lambda: node.facts is not None and not node.facts.fabrics, "it is heard", SECONDS)
    await apply(host, model("late", engine="process", gpus=0, fabric="ib1"))
    gone = "profile p: nodes: 4 not on fabric ib1"
    await eventually(lambda: host.term.reconciler.unplaced.get("late/0") == gone, "it is lost", SECONDS)


async def test_what_has_no_room_is_told_with_the_reason(host: FleetHost) -> None:
    async with agent_of(host) as agent, host.operator() as stub:
        await agent.connect()
        await apply(host, model(gpus=8))
        unplaced: list[fleet_pb2.Unplaced] = []
        while not unplaced:
            answer = await stub.ListShards(fleet_pb2.ListShardsRequest(), timeout=SECONDS)
            unplaced = list(answer.unplaced)
        assert unplaced[0].replica_id == "m/0"
        assert unplaced[0].reason == "profile p: nodes: 1 with too few free GPUs that fit"


async def test_a_gpu_that_someone_else_uses_is_not_taken(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        await agent.connect()
        await agent.hear("ack")
        used = pb.GpuMemoryReport(gpus=[pb.GpuMemory(index=0, used_bytes=40 << 30)])
        await agent.say(heartbeat=pb.Heartbeat(gpu_memory=used, memory_total_bytes=77))
        nodes = host.term.inventory.nodes
        await eventually(
            lambda: (f := nodes["gpu-1"].facts) is not None and f.memory_total == 77, "it is heard"
        )
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        assert list(agent.starts[0].gpu_uuids) == ["gpu-1-gpu1"]


async def test_progress_is_shown_and_a_crash_is_restarted_with_its_output_kept(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_of(host) as agent:
        agent.hold_starts = True
        await agent.connect()
        await apply(host, model())
        first = await until(host, "m-0-0", pb.SHARD_STATE_STARTING)
        progress = pb.ShardProgress(
            shard_id="m-0-0", generation=first.generation, bytes_done=5, bytes_total=10
        )
        await agent.say(shard_progress=progress)
        await until(host, "m-0-0", pb.SHARD_STATE_STARTING, progress=progress)
        await agent.serve("m-0-0")
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await agent.crash("m-0-0")
        again = await until(host, "m-0-0", pb.SHARD_STATE_STARTING, failures=1)
        assert again.generation > first.generation
        monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 600.0)
        await agent.crash("m-0-0")
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=2)
        assert (failed.exit_code, list(failed.last_output)) == (3, ["Traceback", "boom"])
        assert failed.reason == "exit code 3"


async def test_a_start_that_is_refused_is_tried_again_and_says_why(host: FleetHost) -> None:
    async with agent_of(host) as agent:
        refusing = True  # until it was seen: each refusal makes the pause in which it can be seen longer
        obey = agent.on_message

        async def refuse(message: pb.LeaderMessage) -> None:
            if message.HasField("start_shard") and refusing:
                answer = pb.CommandAnswer(request_id=message.start_shard.request_id, error="no such weights")
                await agent.say(command_answer=answer)
                return
            assert obey is not None
            await obey(message)

        agent.on_message = refuse
        await agent.connect()
        await apply(host, model())
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED)
        assert failed.reason == "its node refused the start: no such weights"
        refusing = False
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)


async def test_a_start_that_its_node_does_not_confirm_is_taken_back(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been taken all the same: the shard has failed only once its node says that it is gone."""
    monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 600.0)
    async with agent_of(host) as agent:
        agent.on_message = None
        await agent.connect()
        await apply(host, model())
        start = await agent.hear("start_shard")
        ending = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=0)
        assert ending.reason == "its node did not confirm the start"
        stop = await agent.hear("stop_shard")
        assert (stop.shard_id, stop.generation) == ("m-0-0", start.generation)
        await agent.say(command_answer=pb.CommandAnswer(request_id=stop.request_id, gone=True))
        failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=1)
        assert failed.reason == "its node did not confirm the start"
        assert len(agent.of_kind("start_shard")) == 1


async def test_a_start_whose_answer_was_lost_with_its_stream_goes_on(etcd: EtcdCluster) -> None:
    """Its node tells in the next Register that it has it; that no answer comes any more says nothing."""
    clock = ManualClock()
    async with leading(etcd, clock=clock) as host, agent_of(host) as agent:
        agent.on_message = None
        await agent.connect()
        await apply(host, model())
        start = await agent.hear("start_shard")
        agent.shards["m-0-0"] = pb.RunningShard(
            shard_id="m-0-0",
            generation=start.generation,
            state=pb.SHARD_STATE_STARTING,
            gpu_uuids=start.gpu_uuids,
        )
        await agent.drop()
        await agent.connect()
        await agent.hear("ack", count=2)
        clock.now += 31
        await agent.say(heartbeat=pb.Heartbeat())
        host.term.wake.set()
        awaited = host.term.reconciler._commands
        await eventually(lambda: len(awaited) == 0, "no answer is awaited", SECONDS)
        await agent.serve("m-0-0")
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, generation=start.generation)
        assert agent.of_kind("stop_shard") == []


async def test_a_shard_whose_gpu_is_sick_or_gone_goes_to_another_of_its_node(host: FleetHost) -> None:
    async with agent_of(host, gpus=3) as agent:
        await agent.connect()
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await agent.say(heartbeat=pb.Heartbeat(new_problems=[pb.Problem(text="xid 79", gpu_index=0)]))
        await agent.crash("m-0-0")
        await eventually(lambda: len(agent.starts) == 2, "it is started again", SECONDS)
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        left = agent.description()
        del left.gpus[:2]
        await agent.say(register=left)
        await agent.crash("m-0-0")
        await eventually(lambda: len(agent.starts) == 3, "it is started again", SECONDS)
        used = [list(start.gpu_uuids) for start in agent.starts]
        assert used == [["gpu-1-gpu0"], ["gpu-1-gpu1"], ["gpu-1-gpu2"]]


async def test_a_node_that_is_forgotten_while_a_start_is_written_down_harms_nothing(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = host.term.ledger
    write = ledger.put_assignments
    async with agent_of(host, "a") as a, agent_of(host, "b") as b, host.operator() as stub:

        async def slowly(assignments: Sequence[Assignment]) -> None:
            """The start is on record, and its node is gone before it was told."""
            await write(assignments)
            if any(place.generation for one in assignments for place in one.places):
                monkeypatch.setattr(ledger, "put_assignments", write)
                await a.drop()
                await eventually(lambda: not host.term.connections.is_open("a"), "it is away", SECONDS)
                await stub.ForgetNode(fleet_pb2.ForgetNodeRequest(node_id="a"), timeout=SECONDS)

        await a.connect()
        await a.hear("ack")
        monkeypatch.setattr(ledger, "put_assignments", slowly)
        await apply(host, model())
        await eventually(lambda: "a" not in host.term.inventory.nodes, "it is forgotten", SECONDS)
        await b.connect()
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id="b")


async def test_changes_of_a_model_that_come_together_lose_nothing(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply(host, model())
    ledger = host.term.ledger
    write = ledger.put_model
    entered, go_on, waits = asyncio.Event(), asyncio.Event(), asyncio.Event()
    acquire = host.term.catalogue.acquire

    async def waits_for_its_turn() -> Literal[True]:
        waits.set()
        return await acquire()

    async def slowly(spec: ModelSpec) -> None:
        monkeypatch.setattr(ledger, "put_model", write)
        entered.set()
        await go_on.wait()
        await write(spec)

    monkeypatch.setattr(ledger, "put_model", slowly)
    async with host.operator() as stub:
        applied = asyncio.create_task(apply(host, model(arguments=["--new"])))
        await entered.wait()
        monkeypatch.setattr(host.term.catalogue, "acquire", waits_for_its_turn)
        request = fleet_pb2.ScaleModelRequest(name="m", replicas=3)
        scaled = asyncio.ensure_future(stub.ScaleModel(request, timeout=SECONDS))
        await eventually(waits.is_set, "the second change waits for the first", SECONDS)
        go_on.set()
        assert (await applied).model.revision == 2
        found = (await scaled).model
    assert (found.revision, found.replicas, list(found.profiles[0].arguments)) == (3, 3, ["--new"])


async def test_how_a_shard_ended_while_its_node_had_no_stream_is_still_told(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "FIRST_RETRY_SECONDS", 600.0)
    async with agent_of(host) as agent:
        await agent.connect()
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await agent.drop()
        ended = agent.shards.pop("m-0-0")
        await agent.connect()
        await until(host, "m-0-0", pb.SHARD_STATE_FAILED, reason="its node registered without it")
        await agent.tell(ended, pb.SHARD_STATE_FAILED, error="exit code 7", exit_code=7, last_output=["bye"])
        told = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, reason="exit code 7", exit_code=7)
        assert (told.failures, list(told.last_output)) == (1, ["bye"])


async def test_a_slow_start_is_stopped_and_fails_whatever_progress_it_tells(host: FleetHost) -> None:
    """Were its time counted from its last progress, this start would never fail."""
    told = 0

    async def go_on(agent: RunningAgent) -> None:
        nonlocal told
        start = await agent.hear("start_shard")
        while True:
            told += 1
            progress = pb.ShardProgress(
                shard_id="m-0-0", generation=start.generation, bytes_done=told, bytes_total=1 << 40
            )
            await agent.say(shard_progress=progress)
            await asyncio.sleep(0.05)

    async with agent_of(host) as agent:
        agent.hold_starts = True
        await agent.connect()
        telling = asyncio.create_task(go_on(agent))
        await apply(host, model(start_seconds=1))
        try:
            failed = await until(host, "m-0-0", pb.SHARD_STATE_FAILED, failures=1)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        assert failed.reason == "did not serve within 1 s of its start"
        assert told > 1
        assert (await agent.hear("stop_shard")).shard_id == "m-0-0"


async def test_a_model_that_is_stopped_is_drained_first_and_deleted_after(host: FleetHost) -> None:
    async with agent_of(host) as agent, host.operator() as stub:
        await agent.connect()
        await apply(host, model(drain_seconds=7))
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await stub.ScaleModel(fleet_pb2.ScaleModelRequest(name="m", replicas=0), timeout=SECONDS)
        drain = await agent.hear("drain_shard")
        assert (drain.shard_id, drain.seconds) == ("m-0-0", 7.0)
        await eventually(lambda: not host.term.ledger.records.assignments, "its place is free", SECONDS)
        assert agent.of_kind("stop_shard") == []
        await stub.DeleteModel(fleet_pb2.DeleteModelRequest(name="m"), timeout=SECONDS)
        assert (await stub.GetModels(fleet_pb2.GetModelsRequest(), timeout=SECONDS)).models == []


async def test_a_drain_of_nothing_stops_at_once_and_an_agent_that_can_not_drain_is_told_to_stop(
    host: FleetHost,
) -> None:
    async with agent_of(host, features=("logs",)) as agent:
        await agent.connect()
        await apply(host, model())
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        await apply(host, model(replicas=0))
        await agent.hear("stop_shard")
        assert agent.of_kind("drain_shard") == []


async def test_a_drained_node_is_emptied_and_given_back(host: FleetHost) -> None:
    async with agent_of(host, "a") as a, agent_of(host, "b") as b, host.operator() as stub:
        await a.connect()
        await b.connect()
        await apply(host, model(drain_seconds=0))
        first = await until(host, "m-0-0", pb.SHARD_STATE_RUNNING)
        answer = await stub.DrainNode(fleet_pb2.DrainNodeRequest(node_id=first.node_id), timeout=SECONDS)
        assert list(answer.shard_ids) == ["m-0-0"]
        other = {"a": "b", "b": "a"}[first.node_id]
        await until(host, "m-0-0", pb.SHARD_STATE_RUNNING, node_id=other)
        node = await stub.GetNode(fleet_pb2.GetNodeRequest(node_id=first.node_id), timeout=SECONDS)
        assert (node.summary.draining, node.summary.shards, node.summary.gpus_free) == (True, 0, 2)
        await stub.DrainNode(fleet_pb2.DrainNodeRequest(node_id=first.node_id, undo=True), timeout=SECONDS)
        assert not host.term.inventory.nodes[first.node_id].draining
