"""What changed between two plans, as events for the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.model.plan import GatewayPlan, PlannedCard
from controlplane.model.slots import moved_slots

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log: a stable sentence that operators search for, and what is variable beside it."""

    text: str
    level: Level = "info"
    fields: Mapping[str, object] = field(default_factory=dict)


def plan_events(before: GatewayPlan | None, after: GatewayPlan) -> list[Event]:
    """Events of the step from one plan to the next; none when they are equal."""
    if before is None:
        return [Event("Cluster plan in use", fields={"cards": len(after.cards)})]
    old = {card.serial: card for card in before.cards}
    new = {card.serial: card for card in after.cards}
    both = [(old[serial], new[serial]) for serial in new if serial in old]
    return [
        *_slot_events(before, after),
        *(_joined(card) for card in after.cards if card.serial not in old),
        *(_forgotten(card) for card in before.cards if card.serial not in new),
        *(event for pair in both for event in _card_events(*pair)),
    ]


def _slot_events(before: GatewayPlan, after: GatewayPlan) -> list[Event]:
    moved = moved_slots(before.slot_plan, after.slot_plan)
    if not moved:
        return []
    moves = [f"{s}: {before.slot_plan.slot_of(s)} -> {after.slot_plan.slot_of(s)}" for s in moved]
    fields = {"moved": moves, "previous_fingerprint": before.fingerprint}
    return [Event("Cluster slot plan changed", "warning", fields)]


def _joined(card: PlannedCard) -> Event:
    fields = {"serial": card.serial, "slot": card.slot, "routable": card.routable, "reason": card.reason}
    return Event("Cluster card joined", fields=fields)


def _forgotten(card: PlannedCard) -> Event:
    return Event("Cluster card forgotten", "warning", {"serial": card.serial, "slot": card.slot})


def _card_events(old: PlannedCard, new: PlannedCard) -> list[Event]:
    fields = {"serial": new.serial, "slot": new.slot}
    if new.routable and not old.routable:
        return [Event("Cluster card in service", fields={**fields, "was": old.reason})]
    if not new.routable and new.reason != old.reason:
        return [Event("Cluster card out of service", "warning", {**fields, "reason": new.reason})]
    if new.routable and (new.paths, new.uuid) != (old.paths, old.uuid):
        paths = [f"{path.transport} {path.traddr} {path.trsvcid}" for path in new.paths]
        return [Event("Cluster card has other paths", fields={**fields, "paths": paths, "uuid": new.uuid})]
    return []
