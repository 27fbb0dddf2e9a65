"""The plan that the control process gives to the dataplane: slots, their cards, and which of them route."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.model.cards import CardPath, RegistryEntry
from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.slots import SlotPlan, fingerprint, plan_slots

# The "cluster" of a fixed list of cards in gateway.yaml (storage_devices).
FIXED_LIST = "storage_devices"


@dataclass(frozen=True, slots=True)
class PlannedCard:
    """The card of one slot (0..7).

    `reason` is empty when `routable`; a card without paths is not connected.
    """

    slot: int
    serial: str
    nqn: str
    uuid: str
    paths: tuple[CardPath, ...]
    routable: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """Slots that hold a card, ascending.

    Its order among other plans (the sequence) belongs to the transport.
    """

    cluster_uuid: str
    num_dbs: int
    cards: tuple[PlannedCard, ...]
    layout_version: int = LAYOUT_VERSION

    @property
    def slot_plan(self) -> SlotPlan:
        """The slots alone."""
        return SlotPlan({card.slot: card.serial for card in self.cards})

    @property
    def fingerprint(self) -> str:
        """16 hex digits, equal on all gateways that place every key alike."""
        return fingerprint(self.layout_version, self.num_dbs, self.slot_plan.slots)

    @property
    def routable(self) -> tuple[int, ...]:
        """Slots that dialogs may go to."""
        return tuple(card.slot for card in self.cards if card.routable)


def fixed_plan(devices: Iterable[tuple[RegistryEntry, tuple[CardPath, ...]]], num_dbs: int) -> GatewayPlan:
    """Plan of a fixed list of at most 8 cards, all of them usable."""
    known = {entry.serial: (entry, paths) for entry, paths in devices}
    slots = plan_slots(entry for entry, _ in known.values()).slots
    cards = tuple(
        PlannedCard(slot, serial, known[serial][0].nqn, known[serial][0].uuid, known[serial][1], True)
        for slot, serial in slots.items()
    )
    return GatewayPlan(FIXED_LIST, num_dbs, cards)
