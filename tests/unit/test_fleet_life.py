"""The life of a shard: each event, late, repeated and of another start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.fleet import life
from controlplane.fleet.life import Phase, ShardStatus

GENERATION = 5


def status(phase: Phase = Phase.STARTING, **fields: object) -> ShardStatus:
    return replace(ShardStatus(phase, GENERATION, 100.0), **fields)  # type: ignore[arg-type]


def event(state: pb.ShardState.ValueType, generation: int = GENERATION, **fields: object) -> pb.ShardEvent:
    return pb.ShardEvent(shard_id="m-0-0", generation=generation, state=state, **fields)  # type: ignore[arg-type]


def test_a_start_that_serves_is_running_with_its_port() -> None:
    after = life.on_event(status(), event(pb.SHARD_STATE_RUNNING, port=8000), 130.0)
    assert (after.phase, after.port, after.since) == (Phase.RUNNING, 8000, 130.0)


def test_progress_does_not_touch_the_timer_of_a_start() -> None:
    before = status()
    progress = pb.ShardProgress(generation=GENERATION, bytes_done=1, bytes_total=2)
    after = life.on_progress(before, progress)
    assert after.since == before.since
    assert after.progress is not None
    assert life.on_progress(status(Phase.RUNNING), progress) == status(Phase.RUNNING)
    older = pb.ShardProgress(generation=GENERATION - 1)
    assert life.on_progress(before, older) == before


def test_a_repeated_starting_event_does_not_touch_the_timer() -> None:
    assert life.on_event(status(), event(pb.SHARD_STATE_STARTING), 130.0).since == 100.0


@pytest.mark.parametrize("generation", [GENERATION - 1, GENERATION + 1, 0])
@pytest.mark.parametrize("state", [pb.SHARD_STATE_RUNNING, pb.SHARD_STATE_FAILED, pb.SHARD_STATE_STOPPED])
def test_an_event_of_another_start_is_not_heard(state: pb.ShardState.ValueType, generation: int) -> None:
    assert life.on_event(status(), event(state, generation), 130.0) == status()


@pytest.mark.parametrize("over", [Phase.FAILED, Phase.STOPPED])
@pytest.mark.parametrize("state", list(pb.ShardState.values()))
def test_nothing_comes_after_the_end_of_a_start(over: Phase, state: pb.ShardState.ValueType) -> None:
    assert life.on_event(status(over), event(state), 130.0) == status(over)


def test_a_straggler_does_not_turn_time_back() -> None:
    assert life.on_event(status(Phase.DRAINING), event(pb.SHARD_STATE_RUNNING), 130.0).phase is Phase.DRAINING
    assert life.on_event(status(Phase.RUNNING), event(pb.SHARD_STATE_STARTING), 130.0).phase is Phase.RUNNING


def test_an_unknown_state_of_a_later_version_changes_nothing() -> None:
    assert life.on_event(status(), event(pb.SHARD_STATE_UNSPECIFIED), 130.0) == status()


def test_a_crash_keeps_reason_exit_code_and_last_output() -> None:
    crash = event(pb.SHARD_STATE_FAILED, error="killed", exit_code=137, last_output=["a", "b"])
    after = life.on_event(status(Phase.RUNNING), crash, 130.0)
    assert (after.phase, after.reason, after.exit_code) == (Phase.FAILED, "killed", 137)
    assert after.last_output == ("a", "b")
    assert (after.failures, after.retry_at) == (1, 132.0)


def test_failures_in_a_row_wait_longer_up_to_a_cap_and_a_long_run_begins_anew() -> None:
    delays = [life.retry_delay(n) for n in (1, 2, 3, 8, 9, 10_000)]
    assert delays == [2, 4, 8, 256, 300, 300]
    crash = event(pb.SHARD_STATE_FAILED)
    assert life.on_event(status(Phase.RUNNING, failures=7), crash, 101.0).failures == 8
    assert life.on_event(status(Phase.RUNNING, failures=7), crash, 700.0).failures == 1


def test_a_start_keeps_count_of_failures() -> None:
    failed = life.failed(status(), "x", 110.0)
    again = life.starting(failed, 6, 120.0)
    assert (again.phase, again.generation, again.failures, again.reason) == (Phase.STARTING, 6, 1, "")


def test_a_slow_start_is_ending_until_its_process_is_gone() -> None:
    slow = life.ending(status(), "too slow", 200.0)
    assert slow.phase is Phase.ENDING
    assert life.on_event(slow, event(pb.SHARD_STATE_RUNNING), 201.0).phase is Phase.ENDING
    for end in (pb.SHARD_STATE_STOPPED, pb.SHARD_STATE_FAILED):
        after = life.on_event(slow, event(end), 201.0)
        assert (after.phase, after.reason, after.failures) == (Phase.FAILED, "too slow", 1)
    assert life.gone(slow, 201.0).phase is Phase.FAILED
    assert life.missing(slow, 201.0).phase is Phase.FAILED


def test_a_shard_that_runs_is_not_ended_by_a_late_verdict_on_its_start() -> None:
    assert life.ending(status(Phase.RUNNING), "not confirmed", 200.0) == status(Phase.RUNNING)


def test_adoption_takes_the_age_of_the_shard_into_account() -> None:
    running = pb.RunningShard(
        shard_id="m-0-0", generation=GENERATION, state=pb.SHARD_STATE_STARTING, age_seconds=60, port=9
    )
    after = life.adopted(life.placed(GENERATION, 100.0), running, 110.0)
    assert (after.phase, after.since, after.port) == (Phase.STARTING, 50.0, 9)
    assert life.adopted(after, running, 120.0).since == 50.0


def test_an_adopted_drain_gets_its_whole_time_once_more() -> None:
    running = pb.RunningShard(
        shard_id="m-0-0", generation=GENERATION, state=pb.SHARD_STATE_DRAINING, age_seconds=9000
    )
    after = life.adopted(life.placed(GENERATION, 100.0), running, 110.0)
    assert (after.phase, after.since, after.told) == (Phase.DRAINING, 110.0, 110.0)


def test_how_a_missed_shard_ended_is_told_late_and_counts_no_second_failure() -> None:
    missed = life.missing(status(Phase.RUNNING), 110.0)
    assert missed.reason == "its node registered without it"
    crash = event(pb.SHARD_STATE_FAILED, error="exit code 7", exit_code=7, last_output=["last words"])
    told = life.on_event(missed, crash, 111.0)
    assert (told.reason, told.exit_code, told.last_output) == ("exit code 7", 7, ("last words",))
    assert (told.failures, told.retry_at, told.since) == (1, missed.retry_at, 110.0)
    assert life.on_event(told, event(pb.SHARD_STATE_FAILED, error="again"), 112.0) == told
    assert life.on_event(missed, event(pb.SHARD_STATE_RUNNING), 111.0) == missed
    assert not life.starting(missed, 6, 120.0).unheard


def test_output_is_bounded() -> None:
    crash = event(pb.SHARD_STATE_FAILED, last_output=["x" * 5000] * 100)
    kept = life.on_event(status(), crash, 130.0).last_output
    assert (len(kept), {len(line) for line in kept}) == (50, {1000})


def test_a_shard_that_its_node_does_not_have_has_failed_unless_it_was_at_rest() -> None:
    assert life.missing(status(Phase.RUNNING), 110.0).phase is Phase.FAILED
    assert life.missing(life.placed(GENERATION, 1.0), 110.0).phase is Phase.FAILED
    assert life.missing(status(Phase.DRAINING), 110.0).phase is Phase.STOPPED
    assert life.missing(life.placed(0, 1.0), 110.0) == life.placed(0, 1.0)
