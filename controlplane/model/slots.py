"""The slot plan: which card of the registry holds which of the 8 slots (DESIGN.md, "Slot plan").

Cards and slots rank each other by one weight, so the stable matching is the greedy one by descending weight.
It is a function of the set of registry entries alone: every gateway computes the same plan from the same
registry, in whatever order it met the cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from controlplane.model.cards import RegistryEntry
from controlplane.model.hashing import SLOTS, slot_weight


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """`slots`: slot (0..7) to serial, ascending. `surplus`: serials beyond the eighth, as they joined."""

    slots: Mapping[int, str]
    surplus: tuple[str, ...] = ()

    def slot_of(self, serial: str) -> int | None:
        """Slot that holds the card; None when the card has no slot."""
        return next((slot for slot, holder in self.slots.items() if holder == serial), None)


def match_slots(serials: Iterable[str]) -> dict[int, str]:
    """Stable matching of at most 8 distinct serials to slots; ties: the lower slot, then the lower serial."""
    ranked = sorted((-slot_weight(serial, slot), slot, serial) for serial in serials for slot in range(SLOTS))
    held: dict[int, str] = {}
    placed: set[str] = set()
    for _, slot, serial in ranked:
        if slot not in held and serial not in placed:
            held[slot] = serial
            placed.add(serial)
    return dict(sorted(held.items()))


def plan_slots(registry: Iterable[RegistryEntry]) -> SlotPlan:
    """Plan over the registry: the 8 lowest `join_seq` take part, the others are `surplus`."""
    ordered = sorted(registry, key=lambda entry: (entry.join_seq, entry.serial))
    serials = [entry.serial for entry in ordered]
    return SlotPlan(match_slots(serials[:SLOTS]), tuple(serials[SLOTS:]))


def moved_slots(before: SlotPlan, after: SlotPlan) -> tuple[str, ...]:
    """Serials that both plans place, in different slots: the keys under their slots are misses now."""
    old = {serial: slot for slot, serial in before.slots.items()}
    return tuple(serial for slot, serial in after.slots.items() if old.get(serial, slot) != slot)


def fingerprint(layout_version: int, num_dbs: int, slots: Mapping[int, str]) -> str:
    """16 hex digits that are equal on two gateways exactly when they place every key alike."""
    text = bytearray(b"akv-plan-1\0")
    text += layout_version.to_bytes(4, "little") + num_dbs.to_bytes(4, "little")
    for slot, serial in sorted(slots.items()):
        name = serial.encode()
        text += bytes([slot]) + len(name).to_bytes(2, "little") + name
    return blake2b(text, digest_size=16).hexdigest()[:16]
