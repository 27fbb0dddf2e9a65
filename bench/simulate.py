"""Exact simulation: what unlimited cards under the same routing would answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set

from bench.dialogs import Request
from controlplane.model.routing import slot_for_dialog

SLOTS = 8


class UnlimitedCards:
    """Cards that keep everything, one in each of the `slots`. Memory: 32 bytes and some for each block and
    card."""

    def __init__(self, slots: Iterable[int]) -> None:
        self._cards: dict[int, set[bytes]] = {slot: set() for slot in slots}
        if not self._cards or not all(0 <= slot < SLOTS for slot in self._cards):
            raise ValueError(f"slots {sorted(self._cards)}: give one or more of 0 to {SLOTS - 1}")

    def slot(self, dialog: int) -> int:
        """Where the blocks of a dialog are."""
        slot = slot_for_dialog(dialog, self._cards)
        assert slot is not None, "there is at least one card"
        return slot

    def serve(self, request: Request) -> int:
        """Blocks of the longest stored prefix; then everything of the request is stored."""
        card = self._cards[self.slot(request.dialog)]
        matched = prefix(request.keys, card)
        card.update(request.keys)
        return matched


class LruCache:
    """One cache of `capacity` blocks for all dialogs, that drops what was longest not read or stored."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def serve(self, request: Request) -> int:
        """Blocks of the longest stored prefix, which is read; then the rest of the request is stored."""
        matched = prefix(request.keys, self._blocks.keys())
        for key in request.keys:
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return matched


def prefix(keys: Sequence[bytes], stored: Set[bytes]) -> int:
    """How many keys from the first on are stored without a gap."""
    for index, key in enumerate(keys):
        if key not in stored:
            return index
    return len(keys)
