"""Questions to nodes over real gRPC: ids, one waiter each, deadlines, features, and hostile answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from akv.v1 import agent_pb2 as pb
from akv.v1 import fleet_pb2

from controlplane.base.request_errors import InvalidRequest, NotFound, RequestError, TookTooLong, Unavailable
from controlplane.fleet import requests
from tests.support.fleet import SECONDS, FleetHost, SimAgent
from tests.support.waiting import eventually


async def connected(host: FleetHost, node: str = "gpu-1", **fields: Any) -> SimAgent:
    agent = host.agent(node, **fields)
    await agent.connect()
    await agent.hear("ack")
    return agent


def answering(agent: SimAgent, kind: str, answer: Callable[[Any], dict[str, Any]]) -> None:
    """Have the agent answer each request of a kind."""

    async def on_message(message: pb.LeaderMessage) -> None:
        if message.HasField(kind):  # type: ignore[arg-type]
            await agent.say(**answer(getattr(message, kind)))

    agent.on_message = on_message


async def test_logs_come_with_their_sources_and_a_cursor(host: FleetHost) -> None:
    async with await connected(host) as agent, host.operator() as stub:
        seen = []

        def answer(request: pb.LogsRequest) -> dict[str, Any]:
            seen.append((request.source, request.lines, request.cursor))
            logs = pb.LogsAnswer(
                request_id=request.request_id, lines=["a", "b"], sources=["agent", "m-0-0"], cursor="c1"
            )
            return {"logs_answer": logs}

        answering(agent, "logs_request", answer)
        first = await stub.GetLogs(fleet_pb2.GetLogsRequest(node_id="gpu-1"), timeout=SECONDS)
        assert (list(first.lines), list(first.sources)) == (["a", "b"], ["agent", "m-0-0"])
        request = fleet_pb2.GetLogsRequest(node_id="gpu-1", source="m-0-0", lines=5, cursor=first.cursor)
        await stub.GetLogs(request, timeout=SECONDS)
        assert seen == [("agent", 100, ""), ("m-0-0", 5, "c1")]
        assert len(host.term.requests) == 0


async def test_a_source_that_is_not_there_is_told_with_those_that_are(host: FleetHost) -> None:
    async with await connected(host) as agent:
        answering(
            agent,
            "logs_request",
            lambda r: {
                "logs_answer": pb.LogsAnswer(request_id=r.request_id, error="no log x", sources=["agent"])
            },
        )
        with pytest.raises(NotFound, match="no log x; it has agent"):
            await host.term.requests.logs("gpu-1", "x", 10, "")


async def test_more_lines_than_there_may_be_are_refused(host: FleetHost) -> None:
    with pytest.raises(InvalidRequest, match="5001 lines"):
        await host.term.requests.logs("gpu-1", "agent", 5001, "")


async def test_many_questions_at_once_each_get_their_own_answer(host: FleetHost) -> None:
    """Answered in the reverse order, and each twice."""
    async with await connected(host) as agent:
        asked: list[pb.LogsRequest] = []

        async def collect(message: pb.LeaderMessage) -> None:
            if message.HasField("logs_request"):
                asked.append(message.logs_request)
            if len(asked) == 20:
                for request in reversed(asked):
                    for _ in range(2):
                        lines = [request.source]
                        await agent.say(logs_answer=pb.LogsAnswer(request_id=request.request_id, lines=lines))

        agent.on_message = collect
        answers = await asyncio.gather(*(host.term.requests.logs("gpu-1", f"s{n}", 1, "") for n in range(20)))
        assert [list(answer.lines) for answer in answers] == [[f"s{n}"] for n in range(20)]
        assert len({request.request_id for request in asked}) == 20
        assert len(host.term.requests) == 0


async def test_a_node_that_does_not_answer_costs_its_deadline_and_leaves_nothing(
    host: FleetHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LOGS_SECONDS", 0.3)
    async with await connected(host) as agent:
        with pytest.raises(TookTooLong, match=r"node gpu-1 did not answer requests for logs within 0\.3 s"):
            await host.term.requests.logs("gpu-1", "agent", 1, "")
        assert len(host.term.requests) == 0
        late = (await agent.hear("logs_request")).request_id
        await agent.say(logs_answer=pb.LogsAnswer(request_id=late, lines=["late"]))
        await agent.say(heartbeat=pb.Heartbeat(load=pb.NodeLoad(load1=1)))
        node = host.term.inventory.nodes["gpu-1"]
        await eventually(lambda: node.facts is not None and node.facts.load is not None, "it goes on")


@pytest.mark.parametrize("how", ["the node goes", "the node comes anew", "another host leads"])
async def test_a_question_ends_with_the_stream_on_which_it_was_asked(host: FleetHost, how: str) -> None:
    """Each kind of question, none of which would otherwise end within the test's time."""
    asked: dict[str, Callable[[Any], Any]] = {
        "logs_request": lambda stub: stub.GetLogs(fleet_pb2.GetLogsRequest(node_id="gpu-1")),
        "fabric_scan_request": lambda stub: stub.ScanFabric(
            fleet_pb2.ScanFabricRequest(node_id="gpu-1", hca="mlx5_0", port=1)
        ),
        "fabric_test_request": lambda stub: stub.TestRail(
            fleet_pb2.TestRailRequest(client_node="gpu-2", server_node="gpu-1", seconds=5)
        ),
        "remove_weights": lambda stub: stub.RemoveNodeWeights(
            fleet_pb2.RemoveNodeWeightsRequest(node_id="gpu-1", paths=["/w"])
        ),
    }
    async with await connected(host) as agent, await connected(host, "gpu-2"), host.operator() as stub:
        calls = [ask(stub) for ask in asked.values()]
        for kind in asked:
            await agent.hear(kind)
        requests = host.term.requests
        assert len(requests) == len(calls)
        if how == "the node goes":
            await agent.drop()
        elif how == "the node comes anew":
            async with await connected(host, sequence=agent.sequence):
                await answers_are_in(calls)
        else:
            await host.resign()
        await answers_are_in(calls)
        assert len(requests) == 0


async def answers_are_in(calls: list[Any]) -> None:
    """All are told that it can't be answered any more."""
    for call in calls:
        assert await asyncio.wait_for(call.code(), SECONDS) is grpc.StatusCode.UNAVAILABLE
        assert "node gpu-1: its stream ended before it answered" in await call.details()


async def test_a_caller_that_gives_up_leaves_nothing(host: FleetHost) -> None:
    async with await connected(host) as agent, host.operator() as stub:
        call = stub.GetLogs(fleet_pb2.GetLogsRequest(node_id="gpu-1"))
        await agent.hear("logs_request")
        assert len(host.term.requests) == 1
        call.cancel()
        await eventually(lambda: len(host.term.requests) == 0, "it is forgotten", SECONDS)


async def test_a_node_can_not_answer_for_another(host: FleetHost) -> None:
    async with await connected(host) as asked, await connected(host, "gpu-2") as liar:
        task = asyncio.create_task(host.term.requests.logs("gpu-1", "agent", 1, ""))
        request = await asked.hear("logs_request")
        await liar.say(logs_answer=pb.LogsAnswer(request_id=request.request_id, lines=["lies"]))
        await liar.say(heartbeat=pb.Heartbeat(load=pb.NodeLoad(load1=1)))
        node = host.term.inventory.nodes["gpu-2"]
        await eventually(lambda: node.facts is not None and node.facts.load is not None, "the lie came")
        assert not task.done()
        await asked.say(logs_answer=pb.LogsAnswer(request_id=request.request_id, lines=["truth"]))
        assert list((await task).lines) == ["truth"]


async def test_what_an_agent_can_not_answer_is_refused_at_once_with_the_version_that_can(
    host: FleetHost,
) -> None:
    async with await connected(host, features=("logs",)) as agent, host.operator() as stub:
        with pytest.raises(RequestError, match=r"agent 0\.1\.0, .* fabric scans; agents from 0\.1\.0 on do"):
            await host.term.requests.scan_fabric("gpu-1", "mlx5_0", 1)
        request = fleet_pb2.RemoveNodeWeightsRequest(node_id="gpu-1", paths=["/w"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.RemoveNodeWeights(request, timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert [m.WhichOneof("message") for m in agent.heard] == ["ack", "provision"]


async def test_a_node_without_a_stream_is_told_apart_from_one_that_is_unknown(host: FleetHost) -> None:
    agent = await connected(host)
    await agent.close()
    await eventually(lambda: host.term.connections.nodes() == [], "the stream is gone")
    with pytest.raises(Unavailable, match="no agent connected: node gpu-1"):
        await host.term.requests.logs("gpu-1", "agent", 1, "")
    async with host.operator() as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="no node 'nobody'"):
            await stub.GetLogs(fleet_pb2.GetLogsRequest(node_id="nobody"), timeout=SECONDS)


async def test_a_fabric_is_mapped(host: FleetHost) -> None:
    async with await connected(host) as agent, host.operator() as stub:
        answering(
            agent,
            "fabric_scan_request",
            lambda r: {
                "fabric_scan_answer": pb.FabricScanAnswer(
                    request_id=r.request_id, output=f"{r.hca}/{r.port}", took_seconds=2
                )
            },
        )
        request = fleet_pb2.ScanFabricRequest(node_id="gpu-1", hca="mlx5_0", port=1)
        answer = await stub.ScanFabric(request, timeout=SECONDS)
        assert (answer.output, answer.took_seconds) == ("mlx5_0/1", 2.0)


async def test_the_client_of_a_fabric_test_is_asked_once_its_server_listens(host: FleetHost) -> None:
    async with await connected(host, "a") as client, await connected(host, "b") as server:
        test = asyncio.create_task(
            host.term.requests.test_fabric(
                ("b", pb.FabricTestRequest(side=pb.FABRIC_TEST_SIDE_SERVER, hca="s", seconds=5)),
                ("a", pb.FabricTestRequest(side=pb.FABRIC_TEST_SIDE_CLIENT, hca="c", peer="b", seconds=5)),
            )
        )
        serving = await server.hear("fabric_test_request")
        assert client.of_kind("fabric_test_request") == []
        await server.say(
            fabric_test_listening=pb.FabricTestListening(request_id=serving.request_id, tcp_port=7777)
        )
        calling = await client.hear("fabric_test_request")
        assert (calling.hca, calling.peer, calling.tcp_port) == ("c", "b", 7777)
        answer = pb.FabricTestAnswer(request_id=calling.request_id, average_gbps=390.5)
        await client.say(fabric_test_answer=answer)
        assert (await test).average_gbps == 390.5
        assert len(host.term.requests) == 0


async def test_a_server_that_can_not_serve_ends_the_fabric_test(host: FleetHost) -> None:
    async with await connected(host, "a"), await connected(host, "b") as server:
        answering(
            server,
            "fabric_test_request",
            lambda r: {
                "fabric_test_answer": pb.FabricTestAnswer(request_id=r.request_id, error="no perftest")
            },
        )
        side = pb.FabricTestRequest(seconds=5)
        with pytest.raises(RequestError, match="node b could not serve the test: no perftest"):
            await host.term.requests.test_fabric(("b", side), ("a", side))


async def test_removed_and_kept_weights_are_told(host: FleetHost) -> None:
    async with await connected(host) as agent, host.operator() as stub:
        answering(
            agent,
            "remove_weights",
            lambda r: {
                "remove_weights_answer": pb.RemoveWeightsAnswer(
                    request_id=r.request_id,
                    removed=r.paths[:1],
                    kept=[pb.KeptWeights(path=r.paths[1], reason="shared")],
                    freed_bytes=9,
                )
            },
        )
        request = fleet_pb2.RemoveNodeWeightsRequest(node_id="gpu-1", paths=["/a", "/b"])
        answer = await stub.RemoveNodeWeights(request, timeout=SECONDS)
        assert (list(answer.removed), answer.kept[0].reason, answer.freed_bytes) == (["/a"], "shared", 9)


async def test_engines_are_wanted_of_every_node_at_once_and_of_later_ones(host: FleetHost) -> None:
    async with await connected(host, "old") as old, host.operator() as stub:
        wanted = [pb.EngineWant(engine="vllm", version="1"), pb.EngineWant(engine="llamacpp", version="2")]
        answer = await stub.SetEngines(fleet_pb2.SetEnginesRequest(engines=wanted), timeout=SECONDS)
        assert [list(node.not_installable) for node in answer.nodes] == [["vllm"]]
        assert [e.engine for e in (await old.hear("provision", 2)).engines] == ["llamacpp"]
        async with await connected(host, "later") as later:
            assert [e.engine for e in (await later.hear("provision")).engines] == ["llamacpp"]
        twice = fleet_pb2.SetEnginesRequest(engines=[wanted[0], wanted[0]])
        with pytest.raises(grpc.aio.AioRpcError, match="name each once"):
            await stub.SetEngines(twice, timeout=SECONDS)
        shown = await stub.SetEngines(fleet_pb2.SetEnginesRequest(show=True), timeout=SECONDS)
        assert [e.engine for e in shown.engines] == ["vllm", "llamacpp"]
        await stub.SetEngines(fleet_pb2.SetEnginesRequest(), timeout=SECONDS)
        assert list((await old.hear("provision", 3)).engines) == []


@pytest.mark.parametrize(
    ("engine", "version", "variant"),
    [
        ("../x", "1", ""),
        ("vllm", "; rm -rf /", ""),
        ("vllm", ">=1", ""),
        ("vllm", "", ""),
        ("vllm", "1", "~/x"),
    ],
)
async def test_engines_that_can_be_on_no_node_are_refused(
    host: FleetHost, engine: str, version: str, variant: str
) -> None:
    wanted = [pb.EngineWant(engine=engine, version=version, variant=variant)]
    async with host.operator() as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="engines not taken") as refused:
            await stub.SetEngines(fleet_pb2.SetEnginesRequest(engines=wanted), timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert host.term.ledger.records.engines == ()


async def test_a_node_is_forgotten_only_when_it_is_gone(host: FleetHost) -> None:
    agent = await connected(host)
    await eventually(lambda: "gpu-1" in host.term.ledger.records.nodes, "it is written down", SECONDS)
    async with host.operator() as stub:
        with pytest.raises(grpc.aio.AioRpcError, match="is connected"):
            await stub.ForgetNode(fleet_pb2.ForgetNodeRequest(node_id="gpu-1"), timeout=SECONDS)
        await agent.close()
        await eventually(lambda: host.term.connections.nodes() == [], "the stream is gone")
        await stub.ForgetNode(fleet_pb2.ForgetNodeRequest(node_id="gpu-1"), timeout=SECONDS)
        assert (await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=SECONDS)).nodes == []
    assert host.term.ledger.records.nodes == {}


async def test_a_model_that_makes_no_sense_is_refused(host: FleetHost) -> None:
    async with host.operator() as stub:
        wrong = fleet_pb2.Model(name="Bad Name", replicas=1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ApplyModel(fleet_pb2.ApplyModelRequest(model=wrong), timeout=SECONDS)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Bad Name" in (caught.value.details() or "")
        for call, request in (
            (stub.ScaleModel, fleet_pb2.ScaleModelRequest(name="nothing", replicas=1)),
            (stub.DeleteModel, fleet_pb2.DeleteModelRequest(name="nothing")),
            (stub.ListShards, fleet_pb2.ListShardsRequest(model="nothing")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request, timeout=SECONDS)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
