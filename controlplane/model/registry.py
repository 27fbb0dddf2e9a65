"""The gateway's memory of the cluster's registry, over which the slot plan is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from controlplane.model.cards import RegistryEntry


class RegistryMemory:
    """Registry entries with a count of the polls in a row that missed each.

    A new entry counts at once. A missing one stays for `absent_polls` counting polls, and one that is there
    but can't be read stays for good: leaving the registry moves other cards, so it must be certain.
    """

    def __init__(self, absent_polls: int) -> None:
        self._absent_polls = absent_polls
        self._entries: dict[str, RegistryEntry] = {}
        self._missed: dict[str, int] = {}

    def seed(self, entries: Iterable[RegistryEntry]) -> None:
        """Take over what an earlier run of the gateway knew."""
        self._entries |= {entry.serial: entry for entry in entries}

    def update(
        self, entries: Iterable[RegistryEntry], unreadable: Collection[str], counts: bool
    ) -> tuple[RegistryEntry, ...]:
        """Entries that hold after one answered read, in the order of joining."""
        listed = {entry.serial: entry for entry in entries}
        self._entries |= listed
        for serial in list(self._entries):
            if serial in listed or serial in unreadable:
                self._missed.pop(serial, None)
            else:
                self._miss(serial, counts)
        return tuple(sorted(self._entries.values(), key=lambda entry: (entry.join_seq, entry.serial)))

    def _miss(self, serial: str, counts: bool) -> None:
        missed = self._missed.get(serial, 0) + counts
        self._missed[serial] = missed
        if missed >= self._absent_polls:
            del self._entries[serial], self._missed[serial]
