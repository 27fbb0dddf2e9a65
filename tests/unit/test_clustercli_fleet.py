"""clustercli's fleet commands without a cluster: documents, tables, model files, waiting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from akv.v1 import agent_pb2, fleet_pb2
from rich.console import Console, RenderableType

from clustercli import progress, render_fleet
from clustercli.call import CallError
from clustercli.commands import fleet_engines
from clustercli.model_file import ModelFileError, read_model
from clustercli.plain import plain
from clustercli.session import Output, Session
from clustercli.target import Target
from tests.support.manual_clock import ManualClock

NODE = fleet_pb2.NodeSummary(
    node_id="gpu-1",
    state=fleet_pb2.NODE_STATE_SUSPECT,
    draining=True,
    agent_version="0.1.0",
    gpus=8,
    gpus_unhealthy=1,
    memory_total_bytes=1 << 40,
    engines={"vllm": "0.11.0", "sglang": "0.5"},
    problems=["gpu 3: xid 79"],
)
SHARD = fleet_pb2.Shard(
    shard_id="m-0-0",
    replica_id="m/0",
    model="m",
    profile="p",
    node_id="gpu-1",
    state=agent_pb2.SHARD_STATE_STARTING,
    progress=agent_pb2.ShardProgress(source="weights", bytes_done=25, bytes_total=100),
)


def printed(table: RenderableType) -> str:
    console = Console(file=StringIO(), width=240, highlight=False, markup=False)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_document_has_every_field_numbers_as_numbers_and_enums_as_words() -> None:
    document = json.loads(json.dumps(plain(NODE)))
    assert document["state"] == "suspect"
    assert document["memory_total_bytes"] == 1 << 40
    assert (document["connected"], document["shards"]) == (False, 0)
    assert list(document["engines"]) == ["sglang", "vllm"]
    assert set(document) == {field.name for field in fleet_pb2.NodeSummary.DESCRIPTOR.fields}


def test_what_may_be_absent_is_null_and_later_enum_values_stay_numbers() -> None:
    document = plain(fleet_pb2.Shard(state=77))  # type: ignore[arg-type]
    assert (document["progress"], document["exit_code"], document["state"]) == (None, None, "77")
    assert plain(fleet_pb2.Shard(exit_code=0))["exit_code"] == 0


def test_tables_show_what_an_operator_needs() -> None:
    nodes = plain(fleet_pb2.ListNodesResponse(leader="host-1", nodes=[NODE], waiting="waits for gpu-2"))
    text = printed(render_fleet.nodes_table(nodes))
    words = ["gpu-1", "suspect, draining, no stream", "8 (1 unhealthy)", "1024 GiB", "xid 79", "waits for"]
    assert [word for word in words if word not in text] == []
    shards = plain(
        fleet_pb2.ListShardsResponse(
            shards=[SHARD], unplaced=[fleet_pb2.Unplaced(replica_id="m/1", reason="no room")]
        )
    )
    text = printed(render_fleet.shards_table(shards))
    words = ["m-0-0", "m (p)", "starting", "weights 25 % of 100 bytes", "m/1 has no place: no room"]
    assert [word for word in words if word not in text] == []


def test_a_node_that_was_not_heard_yet_can_be_shown() -> None:
    text = printed(render_fleet.node_table(plain(fleet_pb2.GetNodeResponse(summary=NODE))))
    assert "gpu-1" in text


def test_all_of_a_node_is_shown() -> None:
    node = agent_pb2.Register(
        hostname="gpu-1.test",
        cpu=agent_pb2.Cpu(count=64, model="EPYC"),
        gpus=[agent_pb2.Gpu(index=0, uuid="GPU-a", memory_total_bytes=80 << 30)],
        ib_ports=agent_pb2.IbPortsReport(ports=[agent_pb2.IbPort(hca="mlx5_0", port=1, state="ACTIVE")]),
        storage=agent_pb2.StorageReport(file_systems=[agent_pb2.Storage(path="/data", free_bytes=5)]),
    )
    answer = fleet_pb2.GetNodeResponse(
        summary=NODE,
        node=node,
        load=agent_pb2.NodeLoad(load1=1.5),
        rates=[fleet_pb2.PortRates(hca="mlx5_0", port=1, transmit_bytes_per_second=2e9)],
        shards=[SHARD],
        events=[fleet_pb2.NodeEvent(at=1000, kind="fabrics", before="ib0", after="")],
    )
    text = printed(render_fleet.node_table(plain(answer)))
    words = ["64 cores of EPYC", "GPU-a", "mlx5_0/1", "2.0 GB/s", "/data", "load 1.50", "m-0-0", "fabrics"]
    assert [word for word in words if word not in text] == []


MODEL = """
name: qwen
replicas: 2
profiles:
  - name: h100
    engine: vllm
    arguments: [--model, Qwen/Qwen3-32B, --port, "{port}"]
    gpus: 2
    drain_seconds: 0
"""


def test_a_model_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(MODEL)
    model = read_model(file)
    assert (model.name, model.replicas, model.profiles[0].gpus) == ("qwen", 2, 2)
    assert model.profiles[0].HasField("drain_seconds")


def test_a_model_that_was_shown_can_be_written_again(tmp_path: Path) -> None:
    """The JSON of `models get` is YAML too, but for the revision."""
    file = tmp_path / "model.yaml"
    file.write_text(MODEL)
    model = read_model(file)
    document = plain(model)
    del document["revision"]
    file.write_text(json.dumps(document))
    assert read_model(file) == model


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name: m\nreplica: 2\n", "replica is no key of a model: there are name, replicas, profiles"),
        ("name: m\nrevision: 2\n", "counted by the service"),
        ("name: m\nreplicas: many\n", "replicas is 'many', not a whole number"),
        ("name: m\nreplicas: true\n", "replicas is True, not a whole number"),
        ("name: m\nreplicas: -1\n", "replicas"),
        ("name: 3\n", "name is 3, not text"),
        ("- a\n", "not lines of KEY: VALUE"),
        ("name: m\nprofiles: p\n", "profiles is 'p', not a list"),
        ("name: m\nprofiles: [p]\n", r"profiles\[0\] is 'p', not a mapping"),
        (
            "name: m\nprofiles:\n  - nam: p\n",
            r"profiles\[0\].nam is no key of a profile: there are name, engine, engine_version, ",
        ),
        ("name: m\nprofiles: [{enginVersion: p}]\n", "enginVersion is no key"),
        ("name: m\nprofiles: [{arguments: [--port, 80]}]\n", r"arguments\[1\] is 80, not text"),
        ("name: m\nprofiles: [{gateway: 1}]\n", "gateway is 1, not true or false"),
        ("name: m\nprofiles: [{start_seconds: soon}]\n", "start_seconds is 'soon', not a number"),
        ("name: m\nprofiles: [{environment: {A: 1}}]\n", "numbers stand in quotes"),
    ],
)
def test_a_wrong_model_file_is_told_with_its_name_and_field(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(text)
    with pytest.raises(ModelFileError, match=why) as caught:
        read_model(file)
    assert str(file) in str(caught.value)


def test_waiting_tells_each_change_once_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE_SECONDS", 0.0)
    running = fleet_pb2.Shard()
    running.CopyFrom(SHARD)
    running.state = agent_pb2.SHARD_STATE_RUNNING
    running.ClearField("progress")
    answers: list[list[fleet_pb2.Shard]] = [[], [SHARD], [SHARD], [running], []]
    documents = iter([plain(fleet_pb2.ListShardsResponse(shards=shards)) for shards in answers])
    seen: list[Any] = []

    def done(document: dict[str, Any]) -> bool:
        seen.append(document)
        return len(seen) == 5

    progress.follow(lambda: next(documents), done, "start", 60.0)
    assert capsys.readouterr().err.splitlines() == [
        "m-0-0: starting on gpu-1, weights 25 % of 100 bytes",
        "m-0-0: running on gpu-1",
        "m-0-0: gone",
    ]


def test_waiting_ends_after_its_time() -> None:
    empty = plain(fleet_pb2.ListShardsResponse())
    with pytest.raises(CallError, match="not done within 0 s"):
        progress.follow(lambda: empty, lambda _: False, "start of m", 0.0)


def test_waiting_endures_a_host_that_is_away_and_nothing_that_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE_SECONDS", 0.0)
    away = CallError("shards failed on host-2: no host leads", 1, passing=True)
    answers: Iterator[CallError | None] = iter([None, away, away, None, away, CallError("no model m", 1)])

    def ask() -> dict[str, Any]:
        if error := next(answers):
            raise error
        return plain(fleet_pb2.ListShardsResponse())

    with pytest.raises(CallError, match="no model m"):
        progress.follow(ask, lambda _: False, "start of m", 60.0)
    assert capsys.readouterr().err.splitlines() == ["clustercli: shards failed on host-2: no host leads"] * 2


def engines(state: str, version: str = "2") -> dict[str, Any]:
    """What `provision` asks, of one node that is connected, one that is not, and one that can't."""
    install = agent_pb2.EngineInstall(engine="vllm", version=version, state=state, detail="")
    nodes = [
        fleet_pb2.NodeProvision(node_id="a", engines=[install]),
        fleet_pb2.NodeProvision(node_id="away"),
        fleet_pb2.NodeProvision(node_id="can't", not_installable=["vllm"]),
    ]
    wanted = [agent_pb2.EngineWant(engine="vllm", version="2")]
    return {**plain(fleet_pb2.SetEnginesResponse(engines=wanted, nodes=nodes)), "connected": {"a", "can't"}}


@pytest.mark.parametrize(("state", "waited"), [("installed", 4), ("unsupported", 4), ("failed", 5)])
def test_provisioning_is_waited_for_on_nodes_that_can_tell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: str, waited: int
) -> None:
    """A failure of before counts no more: it counts once the node had the time to begin anew."""
    clock = ManualClock()
    times = SimpleNamespace(monotonic=clock, sleep=lambda seconds: None)
    for module in (progress, fleet_engines):
        monkeypatch.setattr(module, "time", times)
    seen = [engines("installed", "1"), engines("wanted"), engines("downloading"), *[engines(state)] * 3]
    asked = iter(seen)

    def ask(session: Session) -> dict[str, Any]:
        clock.now += 3.0
        return next(asked)

    monkeypatch.setattr(fleet_engines, "_ask", ask)
    session = Session(Target("127.0.0.1:1"), Output.TABLE, None)
    document = fleet_engines._follow(session, 600.0)
    assert len(seen) - len(list(asked)) == waited
    lacking = [] if state == "installed" else [f"vllm is {state} on a"]
    assert fleet_engines._lacking(document, document["connected"]) == lacking
    assert fleet_engines._lacking(document, {"can't"}) == ["no connected node can install vllm"]
    told = ["a: vllm 1 installed", "a: vllm 2 wanted", "a: vllm 2 downloading", f"a: vllm 2 {state}"]
    assert capsys.readouterr().err.splitlines() == told
