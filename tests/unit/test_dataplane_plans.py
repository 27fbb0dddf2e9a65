"""Order and comparison of plans, and the claims on sockets and host identity, without a process."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from controlplane.gateway.messages import plan_to_message
from dataplane.places import PlaceError, claim_socket, host_uuid
from dataplane.plans import (
    MAX_SEQUENCE_STEP,
    InvalidPlanError,
    StalePlanError,
    change_between,
    check_order,
    check_plan,
    native_slots,
)
from tests.support.dataplane import TestCard, make_plan

A, B, C = TestCard("A"), TestCard("B"), TestCard("C")


def test_a_sound_plan_passes_and_keeps_its_slots() -> None:
    plan = plan_to_message(make_plan([A, B, C]), 1)
    check_plan(plan)
    slots = native_slots(plan)
    assert {slot[2] for slot in slots} == {"A", "B", "C"}
    assert [slot[0] for slot in slots] == sorted(slot[0] for slot in slots)
    assert slots[0][5] == [("tcp", "127.0.0.1", "4420")]


def test_an_empty_plan_and_cards_without_paths_are_sound() -> None:
    check_plan(plan_to_message(make_plan([]), 1))
    plan = plan_to_message(make_plan([A]), 1)
    del plan.slots[0].card.paths[:]
    check_plan(plan)


def test_plans_follow_one_another_by_sequence() -> None:
    one, two = plan_to_message(make_plan([A]), 1), plan_to_message(make_plan([A, B]), 2)
    assert check_order(one, None, allow_cluster_change=False)
    assert check_order(two, one, allow_cluster_change=False)
    assert not check_order(two, two, allow_cluster_change=False)
    for late, served in ((one, two), (plan_to_message(make_plan([B]), 2), two)):
        with pytest.raises(StalePlanError):
            check_order(late, served, allow_cluster_change=True)


def test_no_sequence_number_bars_all_later_ones() -> None:
    served = plan_to_message(make_plan([A]), 7)
    check_order(plan_to_message(make_plan([B]), 7 + MAX_SEQUENCE_STEP), served, allow_cluster_change=False)
    for before in (served, None):
        far = plan_to_message(make_plan([B]), 8 + MAX_SEQUENCE_STEP)
        with pytest.raises(InvalidPlanError, match="count on from GetPlan"):
            check_order(far, before, allow_cluster_change=True)
    with pytest.raises(InvalidPlanError, match="is more than 9223372036854775808"):
        check_plan(plan_to_message(make_plan([A]), 2**64 - 1))


def test_another_cluster_needs_permission_and_has_its_own_sequence() -> None:
    served = plan_to_message(make_plan([A]), 9)
    other = plan_to_message(make_plan([A], cluster="another"), 1)
    with pytest.raises(StalePlanError, match="allow_cluster_change"):
        check_order(other, served, allow_cluster_change=False)
    assert check_order(other, served, allow_cluster_change=True)


def test_the_change_between_plans_is_told_by_serial() -> None:
    served = plan_to_message(make_plan([A, B]), 1)
    plan = plan_to_message(make_plan([A, TestCard("B", routable=False), C]), 2)
    change = change_between(served, plan)
    assert (change.added, change.removed) == (["C"], [])
    assert (change.now_routable, change.now_unroutable) == (["C"], ["B"])
    first = change_between(None, served)
    assert (first.added, first.now_routable, first.now_unroutable) == (["A", "B"], ["A", "B"], [])
    assert change_between(plan, plan_to_message(make_plan([]), 3)).removed == ["A", "B", "C"]


def test_the_host_identity_is_kept(tmp_path: Path) -> None:
    made = host_uuid(tmp_path / "state")
    assert host_uuid(tmp_path / "state") == made
    file = tmp_path / "state" / "host_uuid"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("not one\n")
    with pytest.raises(PlaceError, match="holds no UUID"):
        host_uuid(tmp_path / "state")


def test_only_dead_sockets_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "dp.sock"
    claim_socket("dataplane_socket", path)
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(PlaceError, match=r"dataplane_socket: .* is in use by another dataplane"):
            claim_socket("dataplane_socket", path)
        assert path.exists()
    claim_socket("dataplane_socket", path)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(PlaceError, match="is no socket"):
        claim_socket("dataplane_socket", path)
    with pytest.raises(PlaceError, match="can't be made"):
        claim_socket("dataplane_socket", path / "below" / "dp.sock")
