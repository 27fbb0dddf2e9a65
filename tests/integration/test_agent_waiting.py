"""Starts whose weights are on their way, over the end of the agent: they go on, and are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.agent.weights import fetch as fetch_module
from tests.support.addresses import LoopbackNet, free_port
from tests.support.agent_leader import Leader, Stream, leader
from tests.support.agents import agent, write_config
from tests.support.shards import ENGINE
from tests.support.waiting import eventually
from tests.support.weights_store import DATA, Store, digest, weights_store

pytestmark = pytest.mark.slow


@pytest.fixture
def store() -> Iterator[Store]:
    with weights_store() as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "FIRST_RETRY", 0.01)


def config(agent_folder: Path, lead: Leader | str) -> Path:
    (agent_folder / "weights").mkdir(exist_ok=True)
    hosts = lead if isinstance(lead, str) else lead.address
    return write_config(agent_folder, "gpu-1", hosts, weight_roots=[{"path": str(agent_folder / "weights")}])


def order(store: Store) -> pb.StartShard:
    return pb.StartShard(
        request_id="start",
        shard_id="m-0-0",
        replica_id="m/0",
        generation=7,
        engine="process",
        arguments=[sys.executable, str(ENGINE), "--host", "{address}", "--port", "{port}"],
        health_path="/health",
        weights=store.url + digest(),
        stop_grace_seconds=5,
    )


async def begin(stream: Stream, store: Store) -> None:
    """Give the order; it stands still in the middle of its weights."""
    store.open.clear()
    stream.send(start_shard=order(store))
    answer = await stream.wait("command_answer")
    assert answer.error == ""
    progress = await stream.wait("shard_progress")
    assert (progress.shard_id, progress.bytes_total) == ("m-0-0", len(DATA))


async def test_a_start_that_waits_for_its_weights_goes_on_after_a_restart_of_the_agent(
    agent_folder: Path, store: Store, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as lead:
        path = config(agent_folder, lead)
        async with agent(path):
            await begin(await lead.stream(), store)
        [record] = (agent_folder / "state" / "waiting").iterdir()
        assert record.stat().st_mode & 0o777 == 0o600
        async with agent(path):
            stream = await lead.stream(1)
            [line] = stream.register.running_shards
            assert (line.shard_id, line.generation, line.replica_id) == ("m-0-0", 7, "m/0")
            assert (line.state, line.age_seconds >= 0) == (pb.SHARD_STATE_STARTING, True)
            store.open.set()
            running = await stream.event(pb.SHARD_STATE_RUNNING)
            assert (running.generation, running.port) == (7, line.port)
            await eventually(lambda: not record.exists(), "its record is gone")
    resumed = store.ranges[-1]
    assert resumed is not None
    assert 0 < int(resumed.removeprefix("bytes=").rstrip("-")) <= 1 << 20
    [fetched] = (agent_folder / "weights").rglob("tiny.gguf")
    assert fetched.read_bytes() == DATA


async def test_what_was_stopped_while_it_waited_does_not_go_on(
    agent_folder: Path, store: Store, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as lead:
        path = config(agent_folder, lead)
        async with agent(path):
            stream = await lead.stream()
            await begin(stream, store)
            stream.send(stop_shard=pb.StopShard(request_id="stop", shard_id="m-0-0"))
            await stream.event(pb.SHARD_STATE_STOPPED)
        async with agent(path):
            assert not (await lead.stream(1)).register.running_shards
    assert list((agent_folder / "state" / "waiting").iterdir()) == []


async def test_a_fetch_that_failed_while_no_leader_listened_is_told_once_one_does(
    agent_folder: Path, store: Store, loopback_net: LoopbackNet
) -> None:
    port = free_port(loopback_net.host(1))
    async with agent(config(agent_folder, f"{loopback_net.host(1)}:{port}")) as running:
        async with leader(loopback_net.host(1), port=port) as lead:
            await begin(await lead.stream(), store)
        store.status, store.cut = 404, True
        store.open.set()
        await eventually(lambda: not running._starts.waiting, "it failed", 30)
        async with leader(loopback_net.host(1), port=port) as lead:
            event = await (await lead.stream()).event(pb.SHARD_STATE_FAILED)
            assert (event.shard_id, event.generation) == ("m-0-0", 7)
            assert "HTTP status 404" in event.error
    assert list((agent_folder / "state" / "waiting").iterdir()) == []


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"spec": {}}', "null", '{"spec": 3, "source": 4}'])
async def test_a_damaged_record_harms_nothing(
    agent_folder: Path, store: Store, loopback_net: LoopbackNet, damage: str
) -> None:
    waiting = agent_folder / "state" / "waiting"
    waiting.mkdir(parents=True)
    (waiting / "m-0-0.json").write_text(damage)
    (waiting / "other.txt").write_text("not ours")
    async with leader(loopback_net.host(1)) as lead, agent(config(agent_folder, lead)):
        assert not (await lead.stream()).register.running_shards
    assert [path.name for path in waiting.iterdir()] == ["other.txt"]


async def test_weights_that_can_not_be_placed_any_more_fail_the_start(
    agent_folder: Path, store: Store, loopback_net: LoopbackNet
) -> None:
    async with leader(loopback_net.host(1)) as lead:
        async with agent(config(agent_folder, lead)):
            await begin(await lead.stream(), store)
        path = write_config(agent_folder, "gpu-1", lead.address)  # without a root
        record = agent_folder / "state" / "waiting" / "m-0-0.json"
        assert json.loads(record.read_text())["source"].startswith("http://127.0.0.1")
        async with agent(path):
            event = await (await lead.stream(1)).event(pb.SHARD_STATE_FAILED)
            assert "no weight folder of its own" in event.error
        assert not record.exists()
