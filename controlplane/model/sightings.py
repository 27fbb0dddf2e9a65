"""From a snapshot to one sighting a card: which record is the card's, and whose health record counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.model.cards import CardPath, CardRecord, ClusterSnapshot, Health, RegistryEntry
from controlplane.model.debounce import Sighting

# Host and device (xdpN) where a card was seen. Only an attribute: the serial is the identity.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class InUse:
    """Where the gateway has a card now. A restarted gateway does not know the place.

    `uuid` is the namespace's as its host reported it last; some targets make a new one at each start.
    """

    place: Place | None = None
    paths: tuple[CardPath, ...] = ()
    uuid: str = ""

    def is_at(self, record: CardRecord) -> bool:
        """Whether `record` is the one in use."""
        if self.place is None:
            return not set(self.paths).isdisjoint(record.paths)
        return self.place == (record.host, record.device)


@dataclass(frozen=True, slots=True)
class Found:
    """A sighting, the record behind it (None: no record or none readable), and problems to show."""

    sighting: Sighting
    record: CardRecord | None = None
    problems: tuple[str, ...] = ()


class SnapshotIndex:
    """One snapshot, looked up by serial."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._by_serial: dict[str, list[CardRecord]] = defaultdict(list)
        for record in snapshot.cards:
            self._by_serial[record.xdp_serial].append(record)
        self._health = {(record.host, record.device): record for record in snapshot.health}
        self._enabled = {record.host: record.enabled for record in snapshot.hosts}
        unreadable = snapshot.unreadable
        self.unreadable_serials = frozenset(r.name for r in unreadable if r.kind == "registry")
        self._unreadable_cards = frozenset((r.host, r.name) for r in unreadable if r.kind == "card")
        self._unreadable_hosts = frozenset(r.host for r in unreadable if r.kind == "node")

    def find(self, entry: RegistryEntry, in_use: InUse) -> Found:
        """What the snapshot says of a registered card that the gateway has `in_use`."""
        records = self._by_serial.get(entry.serial, [])
        own = [record for record in records if record.nqn == entry.nqn]
        problems = [_foreign(entry, record) for record in records if record.nqn != entry.nqn]
        running = [record for record in own if record.state == "running" and self._host_enabled(record.host)]
        if len(running) > 1:
            problems.append(_duplicate(entry, running))
        candidates = running or own
        if not candidates:
            return Found(self._missing(in_use), None, tuple(problems))
        chosen = min(candidates, key=lambda record: self._rank(record, in_use))
        return Found(self._sighting(chosen), chosen, tuple(problems))

    def _rank(self, record: CardRecord, in_use: InUse) -> tuple[bool, bool, str, str]:
        """The record in use stays in use; else the first by name, alike on every gateway."""
        return not self._host_enabled(record.host), not in_use.is_at(record), record.host, record.device

    def _host_enabled(self, host: str) -> bool:
        """A host without a node record is not disabled."""
        return self._enabled.get(host, True)

    def _missing(self, in_use: InUse) -> Sighting:
        """No record: absent, unless the card's record may be one that can't be read."""
        place = in_use.place
        unknown = bool(self._unreadable_cards) if place is None else place in self._unreadable_cards
        return Sighting(present=None if unknown else False, enabled=None)

    def _sighting(self, record: CardRecord) -> Sighting:
        enabled = None if record.host in self._unreadable_hosts else self._host_enabled(record.host)
        health = self._health.get((record.host, record.device))
        if health is None or health.xdp_serial != record.xdp_serial:
            return Sighting(bool(record.paths), enabled)
        last_known = health.last_known if health.health_xdp is Health.UNKNOWN else health.health_xdp
        return Sighting(bool(record.paths), enabled, health.health_xdp, last_known)


def _foreign(entry: RegistryEntry, record: CardRecord) -> str:
    return (
        f"serial {entry.serial} is registered for {entry.nqn}, but {record.host} {record.device} has it for "
        f"{record.nqn}: that one is not connected"
    )


def _duplicate(entry: RegistryEntry, records: Iterable[CardRecord]) -> str:
    places = ", ".join(sorted(f"{record.host} {record.device}" for record in records))
    return f"serial {entry.serial} is at {places}: only one of them is connected, the first that was in use"
