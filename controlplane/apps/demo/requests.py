"""Requests as the replay reports them, and which card each belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from akv.v1 import plan_pb2

from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.routing import slot_for_dialog
from controlplane.model.slots import fingerprint, match_slots


@dataclass(frozen=True, slots=True)
class Served:
    """One request that was replayed. Counts are blocks, times are CLOCK_MONOTONIC seconds.

    `affinity` is the index of the block that names the dialog: from it on, blocks are nobody else's.
    """

    number: int
    index: int
    dialog: int
    affinity: int
    blocks: int
    matched: int
    expected: int
    got: int
    wrong: int
    put: int
    put_ok: int
    errors: int
    began: float
    ended: float

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Served:
        """From a line of `akv-bench replay --json`; raises KeyError, ValueError."""
        names = (
            "index",
            "affinity",
            "blocks",
            "matched",
            "expected",
            "got",
            "wrong",
            "put",
            "put_ok",
            "errors",
        )
        counts = {name: int(record[name]) for name in names}
        return cls(
            number=int(record["pass"]),
            dialog=int(record["dialog"], 16),
            began=float(record["began"]),
            ended=float(record["ended"]),
            **counts,
        )

    @property
    def full(self) -> bool:
        """Every block was found and read back right."""
        return self.matched == self.blocks == self.got

    @property
    def missed(self) -> bool:
        """None of the dialog's own blocks was found: at most the head that other dialogs share.

        The first block counts as head also where it names the dialog: prompts shorter than two blocks have no
        other.
        """
        return self.matched <= max(self.affinity, 1)


class Placement:
    """Which card (by serial) has which dialogs, as the model computes it from the routable slots of a
    plan."""

    def __init__(self, cards: Mapping[int, str], all_slots: Mapping[int, str], num_dbs: int) -> None:
        self._cards = dict(sorted(cards.items()))
        self._all_slots = dict(all_slots)
        self._num_dbs = num_dbs
        self._known: dict[int, str] = {}

    @classmethod
    def of(cls, plan: plan_pb2.Plan) -> Placement:
        """From the plan that a dataplane serves."""
        routed = {entry.slot: entry.card.serial for entry in plan.slots if entry.routable}
        return cls(routed, {entry.slot: entry.card.serial for entry in plan.slots}, plan.num_dbs)

    @property
    def slots(self) -> tuple[int, ...]:
        """Routable slots, ascending."""
        return tuple(self._cards)

    @property
    def serials(self) -> tuple[str, ...]:
        """Cards in routing, by slot."""
        return tuple(self._cards.values())

    @property
    def fingerprint(self) -> str:
        """Of the slots, by the model: what every gateway of the cluster must tell."""
        return fingerprint(LAYOUT_VERSION, self._num_dbs, self._all_slots)

    def without(self, serial: str) -> Placement:
        """The card is out of routing and keeps its slot."""
        left = {slot: card for slot, card in self._cards.items() if card != serial}
        return Placement(left, self._all_slots, self._num_dbs)

    def joined_by(self, serial: str) -> Placement:
        """Another card takes part in the matching; all are in routing."""
        slots = match_slots([*self._all_slots.values(), serial])
        return Placement(slots, slots, self._num_dbs)

    def serial(self, dialog: int) -> str:
        """The card that has the dialog's blocks; empty where no card is in routing."""
        if dialog not in self._known:
            slot = slot_for_dialog(dialog, self._cards)
            self._known[dialog] = "" if slot is None else self._cards[slot]
        return self._known[dialog]
