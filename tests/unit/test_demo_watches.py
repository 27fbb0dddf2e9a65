"""The demo's judges: what they take for kept, and that each promise can be broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from akv.v1 import plan_pb2

from controlplane.apps.demo.observers import count_in_log, read_status_file, routable
from controlplane.apps.demo.report import NAMES, Promise, Report
from controlplane.apps.demo.requests import Placement, Served
from controlplane.apps.demo.watches import AllFull, Coverage, Homecoming, Prediction, Shift, Troubles
from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.slots import fingerprint, match_slots

SERIALS = ("L0P0", "L1P0", "L2P0")
SLOTS = match_slots(SERIALS)
WHOLE = Placement(SLOTS, SLOTS, 128)
FULL = Served(
    number=2,
    index=0,
    dialog=0,
    affinity=1,
    blocks=5,
    matched=5,
    expected=5,
    got=5,
    wrong=0,
    put=0,
    put_ok=0,
    errors=0,
    began=10.0,
    ended=10.1,
)


def _dialog_of(serial: str, placement: Placement = WHOLE, skip: int = 0) -> int:
    found = (dialog for dialog in range(1000) if placement.serial(dialog) == serial)
    for _ in range(skip):
        next(found)
    return next(found)


def _missed(served: Served) -> Served:
    return replace(served, matched=1, got=1, put=4, put_ok=4)


def test_a_placement_is_that_of_the_served_plan() -> None:
    plan = plan_pb2.Plan(num_dbs=128)
    for slot, serial in SLOTS.items():
        plan.slots.add(slot=slot, card=plan_pb2.CardTarget(serial=serial), routable=serial != "L1P0")
    served = Placement.of(plan)
    assert served.serials == WHOLE.without("L1P0").serials
    assert served.fingerprint == fingerprint(LAYOUT_VERSION, 128, SLOTS) == WHOLE.fingerprint
    assert routable(plan) == {"L0P0", "L2P0"}
    assert routable(None) == frozenset()


def test_losing_a_card_moves_its_dialogs_only_and_a_join_follows_the_matching() -> None:
    left = WHOLE.without("L1P0")
    for dialog in range(300):
        assert left.serial(dialog) != "L1P0"
        if WHOLE.serial(dialog) != "L1P0":
            assert left.serial(dialog) == WHOLE.serial(dialog)
    assert WHOLE.joined_by("L0P1").serials == tuple(match_slots([*SERIALS, "L0P1"]).values())
    assert Placement({}, SLOTS, 128).serial(7) == ""


@pytest.mark.parametrize(("affinity", "matched", "missed"), [(1, 1, True), (1, 2, False), (0, 1, True)])
def test_a_miss_is_nothing_beyond_the_shared_head(affinity: int, matched: int, missed: bool) -> None:
    assert replace(FULL, affinity=affinity, matched=matched).missed is missed


def test_a_killed_card_may_cost_its_own_dialogs_once() -> None:
    own, other, caught = _dialog_of("L1P0"), _dialog_of("L0P0"), _dialog_of("L1P0", skip=1)
    shift = Shift(WHOLE, WHOLE.without("L1P0"), since=5.0, gone=6.0)
    shift.feed(replace(FULL, dialog=other, began=1.0, ended=2.0, got=0))
    shift.feed(replace(FULL, dialog=own, began=5.5))
    shift.feed(replace(FULL, dialog=caught, began=4.9, ended=6.1, got=2, put=3, put_ok=3))
    shift.feed(replace(FULL, dialog=other))
    shift.feed(_missed(replace(FULL, dialog=own)))
    shift.feed(replace(FULL, dialog=own))
    shift.feed(replace(FULL, dialog=caught))
    assert (shift.kept, shift.missed, shift.short, shift.impossible) == (1, {own, caught}, [], [])


def test_a_killed_card_that_answers_or_a_disturbed_neighbour_breaks_the_promise() -> None:
    own, other = _dialog_of("L1P0"), _dialog_of("L0P0")
    shift = Shift(WHOLE, WHOLE.without("L1P0"), since=5.0, gone=6.0)
    shift.feed(replace(FULL, dialog=own))
    shift.feed(replace(FULL, dialog=other, got=4))
    shift.feed(replace(FULL, dialog=other, began=4.0, ended=5.0, got=0))
    assert len(shift.impossible) == 1
    assert len(shift.short) == 2


def test_a_join_lets_dialogs_move_when_it_likes_but_not_by_half() -> None:
    after = WHOLE.joined_by("L0P1")
    moving, caught, half = (_dialog_of("L0P1", after, skip=skip) for skip in range(3))
    shift = Shift(WHOLE, after, since=5.0)
    shift.feed(replace(FULL, dialog=moving))
    shift.feed(_missed(replace(FULL, dialog=moving)))
    shift.feed(replace(FULL, dialog=caught, got=3))
    assert (shift.missed, shift.impossible) == ({moving, caught}, [])
    shift.feed(replace(FULL, dialog=half, matched=3, got=3))
    assert len(shift.impossible) == 1


def test_a_card_that_comes_back_must_have_its_blocks() -> None:
    first, second = _dialog_of("L1P0"), _dialog_of("L1P0", skip=1)
    home = Homecoming(WHOLE, "L1P0", since=5.0)
    home.feed(replace(FULL, dialog=first))
    home.feed(_missed(replace(FULL, dialog=second)))
    home.feed(replace(FULL, dialog=_dialog_of("L0P0"), matched=0))
    assert home.found == {first}
    assert len(home.short) == 1


def test_the_prediction_is_compared_request_by_request() -> None:
    prediction = Prediction()
    prediction.feed(replace(FULL, number=1, expected=4))
    prediction.feed(replace(FULL, number=1, matched=4, got=4))
    prediction.feed(FULL)
    assert (prediction.requests, prediction.matched, prediction.expected) == (2, 9, 9)
    assert prediction.different == 2, "equal sums hide nothing"
    assert prediction.measured_ratio == 0.9


def test_full_coverage_and_troubles() -> None:
    full, coverage, troubles = AllFull(10.0), Coverage(2, 10.0), Troubles()
    for served in (replace(FULL, began=9.0, got=0), FULL, replace(FULL, index=1, got=4, wrong=1, errors=2)):
        for watch in (full, coverage, troubles):
            watch.feed(served)
    assert (full.requests, len(full.short)) == (2, 1)
    assert coverage.complete
    assert (troubles.wrong, troubles.errors) == (1, 2)


def test_the_report_is_good_only_with_seven_kept_promises() -> None:
    report = Report(1, 64, "t", False, [Promise(name, True, "") for name in NAMES])
    assert report.good
    report.wrong_blocks = 1
    assert not report.good
    short = Report(1, 64, "t", False, [Promise(NAMES[0], True, "")], failure="a card ended")
    assert not short.good
    short.complete()
    assert [promise.kept for promise in short.promises] == [True, *[False] * 6]
    assert short.record()["promises"][6] == {"name": NAMES[6], "kept": False, "detail": "not reached"}


def test_the_status_file_and_logs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "status.prom"
    assert read_status_file(path) == {}
    path.write_text('# HELP a b\nxkv_gateway_storage_groups_active 3\nxkv_x{fingerprint="ab"} 1\n')
    assert read_status_file(path) == {("xkv_gateway_storage_groups_active", ""): 3.0, ("xkv_x", "ab"): 1.0}
    assert count_in_log('{"event": "Cluster stale"}\nx\n{"event": "Cluster stale"}', "Cluster stale") == 2
