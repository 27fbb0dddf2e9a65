"""The agent's pure and small parts: heartbeats, leader finding, logs, records, orders, cgroups, state."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.agent import sampler as sampler_module
from controlplane.agent.cgroups import ANCHOR, Cgroups
from controlplane.agent.link.hosts import Hosts
from controlplane.agent.report import after, heartbeat_of, must_register
from controlplane.agent.sampler import Part, Sampler
from controlplane.agent.shards.life import Phase, judge
from controlplane.agent.shards.orders import EngineHome, NodeMeans, spec_of, version_key
from controlplane.agent.shards.process import ProcessId
from controlplane.agent.shards.record import Exit, HolderState, Intent
from controlplane.agent.shards.spec import ShardSpec, SpecError, check
from controlplane.base.addresses import parse_host_port
from tests.support.waiting import eventually

LOAD = pb.NodeLoad(cpu_count=4)


def node(**fields: object) -> pb.Register:
    """A node with two GPUs."""
    register = pb.Register(node_id="n", **fields)  # type: ignore[arg-type]
    for index in range(2):
        register.gpus.add(index=index, uuid=f"GPU-{index}", memory_total_bytes=80 << 30)
    return register


def parts_of(beat: pb.Heartbeat) -> set[str]:
    return {entry.name for entry, _ in beat.ListFields()}


def test_nothing_changed_is_a_heartbeat_with_the_load_alone() -> None:
    beat = heartbeat_of(node(), node(), LOAD)
    assert parts_of(beat) == {"load"}
    assert not must_register(node(), node())


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda now: now.gpus[1].__setattr__("memory_used_bytes", 5), "gpu_memory"),
        (lambda now: now.gpus[0].problems.append("hot"), "new_problems"),
        (lambda now: now.problems.add(text="disk"), "new_problems"),
        (lambda now: now.storage.file_systems.add(path="/", total_bytes=9), "storage"),
        (lambda now: now.weights.weights.add(path="/w/a"), "weights"),
        (lambda now: now.engines.versions.update({"vllm": "1"}), "engines"),
        (lambda now: now.provision.engines.add(engine="vllm"), "provision"),
        (lambda now: now.ib_ports.ports.add(hca="m"), "ib_ports"),
        (lambda now: now.fabrics.fabrics.add(fabric="roce"), "fabrics"),
        (lambda now: now.imex.__setattr__("state", "running"), "imex"),
        (lambda now: now.gpus[0].fabric.__setattr__("clique_id", 3), "gpu_fabric"),
        (lambda now: now.__setattr__("memory_total_bytes", 7), "memory_total_bytes"),
    ],
)
def test_a_heartbeat_carries_the_one_thing_that_changed(change: object, part: str) -> None:
    told, now = node(), node()
    change(now)  # type: ignore[operator]
    beat = heartbeat_of(told, now, LOAD)
    assert parts_of(beat) == {"load", part}
    assert not must_register(told, now)
    assert parts_of(heartbeat_of(after(told, now, beat), now, LOAD)) == {"load"}


def test_ports_that_stand_still_again_are_told_once_more() -> None:
    """Else the leader would show the last rate for ever."""
    told = node()
    told.ib_ports.ports.add(hca="m", port=1, counters={"port_xmit_data": 5})
    assert not heartbeat_of(told, told, LOAD).HasField("ib_ports")
    assert heartbeat_of(told, told, LOAD, ports_moved=True).ib_ports == told.ib_ports


def test_weights_that_are_all_gone_are_told_as_none() -> None:
    told = node()
    told.weights.weights.add(path="/w/a")
    beat = heartbeat_of(told, node(), LOAD)
    assert beat.HasField("weights")
    assert not beat.weights.weights


def test_a_disk_that_fills_slowly_is_told_in_the_end() -> None:
    told, now = node(), node()
    for register in (told, now):
        register.storage.file_systems.add(path="/", total_bytes=1 << 40, free_bytes=1 << 39)
    beats = 0
    for _ in range(64):
        now.storage.file_systems[0].free_bytes -= 64 << 20
        beat = heartbeat_of(told, now, LOAD)
        beats += beat.HasField("storage")
        told = after(told, now, beat)
    assert 2 <= beats <= 16


def test_what_needs_a_register() -> None:
    lost = node()
    del lost.gpus[1]
    assert must_register(node(), lost)
    sick = node()
    sick.gpus[0].problems.append("hot")
    assert not must_register(node(), sick)
    assert must_register(sick, node())


def test_a_leader_that_is_named_is_gone_to_once() -> None:
    hosts = Hosts([parse_host_port(text) for text in ("127.0.0.1:1", "127.0.0.2:1")])
    assert str(hosts.next()) == "127.0.0.1:1"
    assert hosts.hint("127.0.0.9:7")
    assert [str(hosts.next()) for _ in range(3)] == ["127.0.0.9:7", "127.0.0.2:1", "127.0.0.1:1"]
    assert hosts.hint("[::1]:7")
    assert not hosts.hint("[::1]:8")  # sent round and round: no longer at once
    assert str(hosts.next()) == "[::1]:8"
    hosts.arrived(parse_host_port("127.0.0.2:1"))
    assert str(hosts.next()) == "127.0.0.1:1"
    hosts.arrived(parse_host_port("127.0.0.9:7"))
    assert str(hosts.next()) == "127.0.0.2:1"
    assert hosts.hint("127.0.0.9:7")


def test_hints_to_a_leader_that_died_do_not_use_up_the_one_to_its_successor() -> None:
    """Standbys name the dead one until its lease has ended: for longer than there are hosts to ask."""
    hosts = Hosts([parse_host_port(f"127.0.0.{number}:1") for number in (1, 2, 3)])
    hosts.arrived(parse_host_port("127.0.0.1:1"))
    for _ in range(4):
        assert str(hosts.next()) in {"127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"}
        assert hosts.hint("127.0.0.1:1")  # to be gone to at once; there is no one
        assert str(hosts.next()) == "127.0.0.1:1"
        hosts.rested()
    hosts.next()
    assert hosts.hint("127.0.0.2:1")


def test_hints_that_are_not_followed() -> None:
    hosts = Hosts([parse_host_port("127.0.0.1:1")], only_loopback=True)
    for text in ("", "rubbish", "127.0.0.1", "127.0.0.1:0", "10.0.0.1:5000", "evil.example:5000"):
        assert not hosts.hint(text)
    assert str(hosts.next()) == "127.0.0.1:1"


PROCESS = ProcessId(100, 5, "boot")


def state(phase: str, ended: Exit | None = None) -> HolderState:
    return HolderState("t", phase, PROCESS, PROCESS, 1.0, ended)  # type: ignore[arg-type]


def end(code: int | None = 0, name: str = "", error: str = "", *, asked: bool = False) -> Exit:
    return Exit(code, name, error, "bye", asked, 2.0)


@pytest.mark.parametrize(
    ("record", "lives", "intent", "phase", "code"),
    [
        (None, True, Intent(), Phase.STARTING, None),
        (None, False, Intent(), Phase.FAILED, None),
        (None, False, Intent("stop"), Phase.STOPPED, None),
        (state("running"), True, Intent(), Phase.STARTING, None),
        (state("running"), True, Intent(ready=True), Phase.RUNNING, None),
        (state("running"), True, Intent("drain", ready=True), Phase.DRAINING, None),
        (state("stopping"), True, Intent("stop", ready=True), Phase.DRAINING, None),
        (state("running"), False, Intent(ready=True), Phase.FAILED, None),
        (state("ended", end(3)), False, Intent(), Phase.FAILED, 3),
        (state("ended", end(0)), False, Intent(), Phase.FAILED, 0),
        (state("ended", end(None, "SIGSEGV")), False, Intent(), Phase.FAILED, 139),
        (state("ended", end(None, "signal 34")), False, Intent(), Phase.FAILED, 162),
        (state("ended", end(None, "", "no such program")), False, Intent(), Phase.FAILED, None),
        (state("ended", end(None, "SIGTERM", asked=True)), False, Intent(), Phase.STOPPED, 143),
        (state("ended", end(0)), False, Intent("drain"), Phase.STOPPED, 0),
        (state("ended", end(1)), False, Intent("stop"), Phase.STOPPED, 1),
    ],
)
def test_the_life_of_a_shard(
    record: HolderState | None, lives: bool, intent: Intent, phase: Phase, code: int | None
) -> None:
    status = judge(record, lives, intent)
    assert (status.phase, status.exit_code) == (phase, code)
    assert bool(status.error) is (phase is Phase.FAILED)


def order(**fields: object) -> pb.StartShard:
    base: dict[str, object] = {"shard_id": "s", "generation": 1, "engine": "tiny", "port": 8000}
    return pb.StartShard(**{**base, **fields})  # type: ignore[arg-type]


MEANS = NodeMeans(
    address="127.0.0.1",
    engines={
        "tiny": {v: EngineHome(v, (f"/e/{v}/bin/tiny", "serve")) for v in ("0.9.0", "0.10.0", "0.10.0rc1")}
    },
    gpu_uuids=frozenset({"GPU-1", "GPU-2"}),
    environment={"PATH": "/bin", "AKV_AGENT_NODE_ID": "secret", "PYTHONPATH": "/x"},
)


def test_an_order_becomes_a_command() -> None:
    arguments = [
        "--model",
        "{model_path}",
        "-p={port}",
        '{"a": {"b": 1}}',
        "{rank}/{world_size}@{head}",
        "{no}",
    ]
    spec = spec_of(
        order(
            arguments=arguments,
            environment={"X": "{address}:{port}"},
            gpu_uuids=["GPU-2", "GPU-1"],
            rank=1,
            world_size=4,
            head_address="127.0.0.2:9",
        ),
        MEANS,
        "/w/m",
    )
    assert spec.argv == (
        *("/e/0.10.0/bin/tiny", "serve", "--model", "/w/m", "-p=8000"),
        *('{"a": {"b": 1}}', "1/4@127.0.0.2:9", "{no}"),
    )
    assert spec.env == {
        "PATH": "/bin",
        "X": "127.0.0.1:8000",
        "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-1",
    }
    assert spec.engine_version == "0.10.0"


def test_a_shard_without_gpus_sees_none() -> None:
    env = spec_of(order(environment={"CUDA_VISIBLE_DEVICES": "all"}), MEANS, "").env
    assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"engine_version": "7"}, "tiny has no 7 here, only 0.10.0, 0.10.0rc1, 0.9.0"),
        ({"engine": "vllm"}, "'vllm' is not installed here"),
        ({"engine": "process"}, "has no command"),
        ({"gpu_uuids": ["GPU-1", "GPU-1"]}, "gpu_uuids can't be used"),
        ({"gpu_uuids": ["GPU-3"]}, "no GPU 'GPU-3'"),
        ({"shard_id": "-x"}, "shard id '-x'"),
        ({"shard_id": ""}, "shard id ''"),
        ({"shard_id": "a/b"}, "shard id 'a/b'"),
        ({"shard_id": "."}, "shard id '.'"),
        ({"arguments": ["a\0b"]}, "has a NUL"),
        ({"environment": {"A=B": "x"}}, "'A=B' is not the name"),
        ({"health_path": "health"}, "health_path can't be used"),
        ({"health_path": "/a b"}, "health_path can't be used"),
        ({"drain_path": "/d", "drain_signal": "SIGTERM"}, "at once can't be used"),
        ({"drain_signal": "SIGKILL"}, "drain_signal can't be used"),
        ({"stop_grace_seconds": -1.0}, "stop_grace_seconds can't be used"),
        ({"stop_grace_seconds": float("nan")}, "stop_grace_seconds can't be used"),
        ({"port": 70_000}, "port can't be used"),
        ({"gateway": True}, "set gateway_socket"),
    ],
)
def test_orders_that_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError) as error:
        spec_of(order(**fields), MEANS, "")
    assert reason in str(error.value)


def test_versions_are_ordered_by_their_numbers() -> None:
    versions = ["0.9.0", "0.10.0", "0.10.0rc1", "1.0+cu124", "1.0"]
    assert max(versions, key=version_key) == "1.0+cu124"
    assert max(versions[:3], key=version_key) == "0.10.0"


def spec(**fields: object) -> ShardSpec:
    base: dict[str, object] = {"argv": ("/bin/true",), "engine": "process", "engine_version": ""}
    names = {"shard_id": "s", "replica_id": "r", "model": "m", "profile": "p", "generation": 1}
    return check(ShardSpec(**{**base, **names, **fields}))  # type: ignore[arg-type]


def test_limits_in_a_delegated_cgroup(tmp_path: Path) -> None:
    """By a tree of plain files: the kernel of this machine delegates no memory controller."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.procs").write_text("10\n11\n")
    groups = Cgroups(tmp_path)
    groups.set_up()
    assert groups.problem == ""
    assert (tmp_path / ANCHOR / "cgroup.procs").read_text() == "11"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    limited = groups.prepare(spec(memory_bytes=1 << 30))
    assert limited.cgroup == str(tmp_path / "shard-s")
    assert (tmp_path / "shard-s" / "memory.max").read_text() == str(1 << 30)
    assert (tmp_path / "shard-s" / "memory.oom.group").read_text() == "1"


def test_limits_that_are_not_possible_are_said(tmp_path: Path) -> None:
    for root, reason in ((None, "not set"), (tmp_path / "none", "No such file")):
        groups = Cgroups(root)
        groups.set_up()
        assert reason in groups.problem
        assert groups.prepare(spec(memory_bytes=1)).cgroup == ""
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    groups = Cgroups(tmp_path)
    groups.set_up()
    assert "has no controller memory" in groups.problem


async def test_a_part_that_hangs_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "STUCK_SECONDS", 0.1)
    release = threading.Event()
    troubles: dict[str, str] = {}
    values: list[int] = []

    def fails() -> int:
        raise OSError("no such device")

    sampler = Sampler(
        [
            Part("hangs", release.wait, lambda value: values.append(-1), 0.01),
            Part("works", lambda: 1, values.append, 0.01),
            Part("fails", fails, values.append, 0.01),
        ],
        troubles.__setitem__,
    )
    task = asyncio.create_task(sampler.run())
    try:
        await sampler.first(0.2)
        await eventually(lambda: len(values) > 5, "the other part is read")
        assert "no answer" in troubles["hangs"]
        assert "no such device" in troubles["fails"]
        assert troubles["works"] == ""
        release.set()
        await eventually(lambda: -1 in values and troubles["hangs"] == "", "it is read in the end")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_drain_that_is_taken_up_again_lasts_no_longer_than_was_given() -> None:
    drain = Intent("drain", drain_until=1060.0, drain_seconds=60.0)
    assert [drain.drain_left(now) for now in (1000.0, 1050.0, 1061.0)] == [60.0, 10.0, 0.0]
    assert drain.drain_left(1000.0 - 86400) == 60.0, "the clock went back by a day"
    assert Intent("drain", drain_until=1060.0).drain_left(1000.0) == 60.0, "a record of an older version"
