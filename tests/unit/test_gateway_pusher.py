"""The pusher of plans on a dataplane that keeps what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from akv.v1 import dataplane_pb2
from structlog.testing import capture_logs

from controlplane.base.backoff import Backoff
from controlplane.gateway.dataplane import DataplaneClient, DataplaneError
from controlplane.gateway.messages import plan_to_message
from controlplane.gateway.pusher import PlanPusher
from tests.support.gateway_plans import UUID, a_plan, running
from tests.support.grpc_peers import RecordingDataplane
from tests.support.procs import wait_until


@pytest.fixture
def recorder(tmp_path: Path) -> Any:
    dataplane = RecordingDataplane(tmp_path / "d.sock")
    yield dataplane
    dataplane.stop()


@pytest.fixture
async def client(recorder: RecordingDataplane) -> AsyncIterator[DataplaneClient]:
    made = DataplaneClient(str(recorder.socket))
    yield made
    await made.close()


async def until(probe: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, probe, what)


async def in_sync(pusher: PlanPusher) -> None:
    await until(lambda: pusher.in_sync, "the plan is served")


async def reads(recorder: RecordingDataplane, count: int) -> None:
    await until(lambda: recorder.plans_read == count, f"the plan was read {count} times")


async def _pushed(pusher: PlanPusher) -> None:
    """Run the pusher until it is in sync."""
    async with running(pusher):
        await in_sync(pusher)


async def test_sequence_numbers_go_on_from_the_dataplanes(
    recorder: RecordingDataplane, client: DataplaneClient
) -> None:
    recorder.plan = plan_to_message(a_plan("a"), 41)
    pusher = PlanPusher(client, Backoff(0.01, 0.1))
    pusher.want(a_plan("a"))
    await _pushed(pusher)
    assert recorder.applied == []
    pusher.want(a_plan("a", "b"))
    await _pushed(pusher)
    assert [plan.sequence for plan in recorder.applied] == [42]


async def test_a_status_that_tells_of_another_plan_makes_the_pusher_read_it(
    recorder: RecordingDataplane, client: DataplaneClient
) -> None:
    changes: list[bool] = []
    pusher = PlanPusher(client, Backoff(0.01, 0.1), changed=lambda: changes.append(pusher.in_sync))
    pusher.want(a_plan("a"))
    async with running(pusher):
        await until(lambda: changes == [True], "the plan is served")
        pusher.heard(await client.get_status())
        await client.get_status()  # a GetPlan would be before it
        assert recorder.plans_read == 1
        recorder.plan = None
        pusher.heard(await client.get_status())
        await until(lambda: len(recorder.applied) == 2, "the plan is pushed again")
        assert recorder.plans_read == 2
    assert changes == [True, False]


async def test_a_dataplane_that_does_not_know_of_sequences_is_not_asked_without_end(
    recorder: RecordingDataplane, client: DataplaneClient
) -> None:
    """One of an older version that runs on; whoever is told of a change asks at once."""
    told: list[bool] = []
    pusher = PlanPusher(client, Backoff(0.01, 0.1), changed=lambda: told.append(pusher.in_sync))
    pusher.want(a_plan("a"))
    async with running(pusher):
        await until(lambda: told == [True], "the plan is served")
        for answer in (dataplane_pb2.GetStatusResponse(), DataplaneError("GetStatus: internal: broken")):
            read = recorder.plans_read
            pusher.heard(answer)
            await reads(recorder, read + 1)
        await in_sync(pusher)
        await client.get_status()  # what else the pusher had to do is done
        assert told == [True]
        assert len(recorder.applied) == 1


@pytest.mark.parametrize(
    "doubt", [dataplane_pb2.GetStatusResponse(), DataplaneError("GetStatus: deadline_exceeded: no answer")]
)
async def test_a_doubt_that_comes_up_while_the_plan_is_read_makes_the_pusher_read_it_once_more(
    recorder: RecordingDataplane,
    client: DataplaneClient,
    doubt: dataplane_pb2.GetStatusResponse | DataplaneError,
) -> None:
    """The answer that is under way may be from before what raised it."""
    pusher = PlanPusher(client, Backoff(0.01, 0.1))
    pusher.want(a_plan("a"))
    async with running(pusher):
        await in_sync(pusher)
        recorder.answers.clear()
        pusher.heard(dataplane_pb2.GetStatusResponse())
        await reads(recorder, 2)
        pusher.heard(doubt)
        recorder.answers.set()
        await reads(recorder, 3)
        await in_sync(pusher)
        await client.get_status()  # a GetPlan would be before it
    assert recorder.plans_read == 3


async def test_statuses_that_do_not_come_are_no_fault_while_the_plan_can_be_read(
    recorder: RecordingDataplane, client: DataplaneClient
) -> None:
    pusher = PlanPusher(client, Backoff(0.01, 0.1))
    pusher.want(a_plan("a"))
    with capture_logs() as events:
        async with running(pusher):
            for number in range(3):
                await in_sync(pusher)
                assert recorder.plans_read == 1 + number
                pusher.heard(DataplaneError("GetStatus: deadline_exceeded: no answer"))
                assert not pusher.in_sync
            await in_sync(pusher)
            recorder.stop()
            await until(lambda: len(events) == 3, "the real failure is told")
    told = [event["event"] for event in events]
    assert told == ["Plan applied", "Dataplane connection lost", "Dataplane does not answer"]


async def test_a_plan_that_is_not_sure_to_be_served_is_pushed_again(
    recorder: RecordingDataplane, client: DataplaneClient
) -> None:
    recorder.plan, recorder.unsettled = plan_to_message(a_plan("a"), 41), True
    pusher = PlanPusher(client, Backoff(0.01, 0.1))
    pusher.want(a_plan("a"))
    await _pushed(pusher)
    assert [plan.sequence for plan in recorder.applied] == [42]


@pytest.mark.parametrize("accepted", [None, "other"])
async def test_only_the_accepted_cluster_replaces_another(
    recorder: RecordingDataplane, client: DataplaneClient, accepted: str | None
) -> None:
    recorder.plan = plan_to_message(a_plan("a"), 7)
    pusher = PlanPusher(client, Backoff(0.01, 0.1), accepted)
    pusher.want(a_plan("x", cluster="other"))
    if accepted is None:
        async with running(pusher):
            await until(lambda: recorder.refused_changes >= 2, "two refusals")
        assert not pusher.in_sync
    else:
        await _pushed(pusher)
    assert recorder.plan.cluster_uuid == (accepted or UUID)


async def test_the_pusher_can_be_cancelled_at_any_moment_of_a_change(client: DataplaneClient) -> None:
    for turns in range(60):
        pusher = PlanPusher(client, Backoff(0.01, 0.1))
        pusher.want(a_plan("a", f"b{turns}"))
        task = asyncio.create_task(pusher.run())
        await in_sync(pusher)
        pusher.want(a_plan("a", f"c{turns}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=2)
        assert task in done
