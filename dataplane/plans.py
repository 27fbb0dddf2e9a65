"""Plans of the control process: which are sound, and which may follow which. Pure functions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from akv.v1 import plan_pb2

from controlplane.base.card_names import is_nqn, is_serial, is_service_id, is_uuid

LAYOUT_VERSION: Final = 1
SLOTS: Final = 8
MAX_PATHS: Final = 16
# One plan that counts too far must not make every later one too old: nobody counts so far, or so far at once.
MAX_SEQUENCE: Final = 2**63
MAX_SEQUENCE_STEP: Final = 2**32
_is_cluster = re.compile(r"[!-~]{1,64}").fullmatch
_is_fingerprint = re.compile(r"[0-9a-f]{16}").fullmatch

Slot = tuple[int, bool, str, str, str, list[tuple[str, str, str]]]


class InvalidPlanError(ValueError):
    """A plan with a field that can't be right; the text names field and value."""


class StalePlanError(ValueError):
    """A sound plan that may not replace the one that is served."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan does to the cards in use, by serial number, each list in order."""

    added: list[str]
    removed: list[str]
    now_routable: list[str]
    now_unroutable: list[str]


def check_plan(plan: plan_pb2.Plan) -> None:
    """Check every field. Raises InvalidPlanError."""
    _expect("cluster_uuid", plan.cluster_uuid, _is_cluster, "1 to 64 printable characters")
    if plan.sequence < 1:
        raise InvalidPlanError("sequence: 0 is no sequence number; begin with 1")
    if plan.sequence > MAX_SEQUENCE:
        raise InvalidPlanError(
            f"sequence: {plan.sequence} is more than {MAX_SEQUENCE}; count on from GetPlan's"
        )
    if plan.layout_version != LAYOUT_VERSION:
        raise InvalidPlanError(
            f"layout_version: {plan.layout_version} is not known; this dataplane knows {LAYOUT_VERSION}"
        )
    if plan.num_dbs < 1:
        raise InvalidPlanError("num_dbs: 0 partitions; it is at least 1")
    _expect("fingerprint", plan.fingerprint, _is_fingerprint, "16 hexadecimal digits")
    last = -1
    for index, assignment in enumerate(plan.slots):
        _check_slot(f"slots[{index}]", assignment, last)
        last = assignment.slot
    serials = [assignment.card.serial for assignment in plan.slots]
    for serial in serials:
        if serials.count(serial) > 1:
            raise InvalidPlanError(f"slots: serial {serial!r} is in two slots; a card has one")


def check_order(plan: plan_pb2.Plan, served: plan_pb2.Plan | None, *, allow_cluster_change: bool) -> bool:
    """True when `plan` is to be applied, False when it is served already.

    Raises StalePlanError, or InvalidPlanError where the sequence number jumps.
    """
    before = served.sequence if served is not None else 0
    if plan.sequence - before > MAX_SEQUENCE_STEP:
        raise InvalidPlanError(
            f"sequence: {plan.sequence} is more than {MAX_SEQUENCE_STEP} past {before}; count on from "
            "GetPlan's"
        )
    if served is None:
        return True
    if plan.cluster_uuid != served.cluster_uuid:
        if allow_cluster_change:
            return True
        raise StalePlanError(
            f"cluster_uuid: {plan.cluster_uuid} is not {served.cluster_uuid}, whose plan is served; set "
            "allow_cluster_change to move to another cluster"
        )
    if plan.sequence < served.sequence:
        raise StalePlanError(f"sequence: {plan.sequence} is older than {served.sequence}, which is served")
    if plan.sequence > served.sequence:
        return True
    if plan != served:
        raise StalePlanError(f"sequence: {plan.sequence} is served with another content; count on")
    return False


def change_between(served: plan_pb2.Plan | None, plan: plan_pb2.Plan) -> Change:
    """Compare the cards of two plans."""
    before, after = _routable_by_serial(served), _routable_by_serial(plan)
    return Change(
        added=sorted(after.keys() - before.keys()),
        removed=sorted(before.keys() - after.keys()),
        now_routable=sorted(s for s, on in after.items() if on and not before.get(s, False)),
        now_unroutable=sorted(s for s, on in after.items() if not on and before.get(s, True)),
    )


def native_slots(plan: plan_pb2.Plan) -> list[Slot]:
    """The slots as the engine takes them."""
    return [
        (
            assignment.slot,
            assignment.routable,
            assignment.card.serial,
            assignment.card.nqn,
            assignment.card.uuid,
            [(path.transport, path.traddr, path.trsvcid) for path in assignment.card.paths],
        )
        for assignment in plan.slots
    ]


def _routable_by_serial(plan: plan_pb2.Plan | None) -> dict[str, bool]:
    return {} if plan is None else {entry.card.serial: entry.routable for entry in plan.slots}


def _expect(field: str, value: str, holds: Callable[[str], object], wanted: str) -> None:
    if not holds(value):
        raise InvalidPlanError(f"{field}: {value[:80]!r} is not {wanted}")


def _check_slot(where: str, assignment: plan_pb2.SlotAssignment, last: int) -> None:
    if not 0 <= assignment.slot < SLOTS:
        raise InvalidPlanError(f"{where}.slot: {assignment.slot} is not one of 0 to {SLOTS - 1}")
    if assignment.slot <= last:
        raise InvalidPlanError(f"{where}.slot: {assignment.slot} comes after {last}; slots ascend")
    card = assignment.card
    _expect(f"{where}.card.serial", card.serial, is_serial, "1 to 20 printable characters")
    _expect(f"{where}.card.nqn", card.nqn, is_nqn, "an NVMe qualified name of at most 223 characters")
    if card.uuid:
        _expect(f"{where}.card.uuid", card.uuid, is_uuid, "a UUID")
    if len(card.paths) > MAX_PATHS:
        raise InvalidPlanError(f"{where}.card.paths: {len(card.paths)} paths; at most {MAX_PATHS}")
    for index, path in enumerate(card.paths):
        _check_path(f"{where}.card.paths[{index}]", path)


def _check_path(where: str, path: plan_pb2.CardPath) -> None:
    if path.transport not in ("tcp", "rdma"):
        raise InvalidPlanError(f'{where}.transport: {path.transport[:80]!r} is not "tcp" or "rdma"')
    try:
        ipaddress.ip_address(path.traddr)
    except ValueError:
        raise InvalidPlanError(f"{where}.traddr: {path.traddr[:80]!r} is not an IP address") from None
    _expect(f"{where}.trsvcid", path.trsvcid, is_service_id, "a port number")
