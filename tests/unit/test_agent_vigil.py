"""An engine that served: when its silence is one too long, and what that makes of its end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.agent.settings import AgentConfig
from controlplane.agent.shards.life import Phase, judge
from controlplane.agent.shards.process import ProcessId
from controlplane.agent.shards.record import Exit, HolderState, Intent
from controlplane.agent.shards.vigil import Patience, Vigil

PATIENCE = Patience(interval=10.0, deadline=30.0, misses=3)
HOLDER = ProcessId(1, 1, "boot")


def test_it_is_given_up_after_so_many_failed_probes_in_a_row_and_says_why() -> None:
    vigil = Vigil(PATIENCE, 100.0)
    assert vigil.heard("no answer within 30 s", 140.0) == ""
    assert vigil.heard("no answer within 30 s", 180.0) == ""
    assert vigil.heard("HTTP status 503", 190.0) == (
        "unresponsive: 3 health probes failed in a row, the last good answer was 90 s ago; "
        "the last one: HTTP status 503"
    )


def test_one_answer_however_late_begins_anew() -> None:
    vigil = Vigil(PATIENCE, 0.0)
    for _ in range(50):
        assert vigil.heard("no answer within 30 s", 0.0) == ""
        assert vigil.heard("no answer within 30 s", 0.0) == ""
        assert vigil.heard("", 0.0) == ""
        assert vigil.missed == 0


def test_a_pause_of_the_agent_itself_is_one_failed_probe() -> None:
    assert Vigil(PATIENCE, 0.0).heard("no answer within 30 s", 86_400.0) == ""


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8))
def test_only_a_row_of_failures_counts(answers: list[bool], misses: int) -> None:
    vigil = Vigil(Patience(misses=misses), 0.0)
    row = 0
    for number, good in enumerate(answers):
        row = 0 if good else row + 1
        assert bool(vigil.heard("" if good else "refused", float(number))) == (row >= misses)


@given(st.floats(0, 1, exclude_max=True))
def test_probes_are_spread(uniform: float) -> None:
    assert 5.0 <= Vigil(PATIENCE, 0.0).pause(uniform) <= 10.0


def test_a_hung_engine_has_minutes_with_the_numbers_that_ship() -> None:
    config = AgentConfig(
        node_id="n", address="127.0.0.1", cluster_hostname="127.0.0.1", cluster_security="insecure-loopback"
    )
    patience = config.patience()
    assert patience == Patience()
    assert patience.misses * (patience.deadline + patience.interval / 2) >= 200


@pytest.mark.parametrize(
    ("wish", "phase"), [("run", Phase.FAILED), ("drain", Phase.STOPPED), ("stop", Phase.STOPPED)]
)
def test_the_end_of_one_that_was_given_up_is_a_failure_unless_it_was_to_end_anyway(
    wish: str, phase: Phase
) -> None:
    """The holder was told to stop by the agent itself."""
    ended = Exit(None, "SIGKILL", "", "last words", asked=True, at=0.0)
    intent = Intent(wish=wish, ready=True, unresponsive="unresponsive: 3")  # type: ignore[arg-type]
    status = judge(HolderState("t", "ended", HOLDER, exit=ended), False, intent)
    assert (status.phase, status.exit_code, status.last_output) == (phase, 137, "last words")
    assert status.error == ("unresponsive: 3" if wish == "run" else "")


def test_one_that_was_given_up_is_running_until_it_has_ended_and_failed_when_its_holder_is_killed() -> None:
    intent = Intent(ready=True, unresponsive="unresponsive: 3")
    state = HolderState("t", "running", HOLDER)
    assert judge(state, True, intent).phase is Phase.RUNNING
    ended = judge(state, False, intent)
    assert (ended.phase, ended.error) == (Phase.FAILED, "unresponsive: 3")
