"""What a gateway holds true of its cluster, fed with answers and failures, giving plans and events.

Pure: time is an argument and nothing is read or written. The I/O loop reads, hands over what it got, logs the
events, and gives the plan to the dataplane.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.model.cards import ClusterSnapshot, RegistryEntry
from controlplane.model.debounce import CardState, PollGate, PollLimits, first_state, next_state
from controlplane.model.identity import ClusterIdentity
from controlplane.model.plan import GatewayPlan, PlannedCard
from controlplane.model.plan_events import Event, plan_events
from controlplane.model.registry import RegistryMemory
from controlplane.model.sightings import InUse, SnapshotIndex
from controlplane.model.slots import moved_slots, plan_slots
from controlplane.model.soundness import sound


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome of one read.

    `stale` says why the answer did not count; `changed` that the plan is another one.
    """

    events: tuple[Event, ...] = ()
    changed: bool = False
    stale: str | None = None


@dataclass(frozen=True, slots=True)
class _Card:
    """Memory of one registered card."""

    state: CardState
    in_use: InUse


class GatewayView:
    """The cluster as one gateway sees it. All times are monotonic seconds."""

    def __init__(self, limits: PollLimits, num_dbs: int, pinned_uuid: str | None = None) -> None:
        self.plan: GatewayPlan | None = None
        self.stale: str | None = None
        self.slots_moved = 0
        self.problems: tuple[str, ...] = ()
        self.surplus: tuple[str, ...] = ()
        self._limits = limits
        self._num_dbs = num_dbs
        self._identity = ClusterIdentity(pinned_uuid)
        self._gate = PollGate(limits.interval)
        self._registry = RegistryMemory(limits.absent_polls)
        self._cards: dict[str, _Card] = {}
        self._stale_since = 0.0

    @property
    def cluster_uuid(self) -> str | None:
        """The pinned cluster; None until one has answered for the first time."""
        return self._identity.uuid

    def refuses_uuid(self, uuid: str) -> str | None:
        """Why a host that names cluster `uuid` as its own is not asked; None when it is ours."""
        return self._identity.refuses_uuid(uuid)

    def adopt(self, plan: GatewayPlan) -> None:
        """Continue from the plan that the dataplane serves: it is this gateway's history after a restart.

        Call it before the first read. A plan of another cluster than the pinned one is no history.
        """
        if self._identity.uuid not in (None, plan.cluster_uuid):
            return
        self._identity.uuid = plan.cluster_uuid
        self.plan = plan
        # A card of the plan took part, so it is among the lowest join_seq until the registry says its own.
        self._registry.seed(RegistryEntry(card.serial, card.nqn, card.uuid, 0) for card in plan.cards)
        self._cards = {
            card.serial: _Card(_state_of(card.reason), InUse(None, card.paths, card.uuid))
            for card in plan.cards
        }

    def failed(self, why: str, now: float) -> Decision:
        """No answer that counts: everything stays as it is."""
        if self.stale is not None:
            self.stale = why
            return Decision(stale=why)
        self.stale, self._stale_since = why, now
        return Decision((self._signed(Event("Cluster stale", "warning", {"why": why})),), stale=why)

    def observe(self, snapshot: ClusterSnapshot, now: float, is_poll: bool) -> Decision:
        """Take one answer of a read begun at `now`; `is_poll` is false for an early read after an event."""
        refusal = self._identity.admit(snapshot)
        if refusal is not None:
            return self.failed(refusal, now)
        snapshot = sound(snapshot)
        events = self._answered(now)
        before = self.plan
        self.plan, problems = self._next_plan(snapshot, self._gate.counts(now, is_poll))
        if self.plan != before:
            events += plan_events(before, self.plan)
        if before is not None:
            self.slots_moved += len(moved_slots(before.slot_plan, self.plan.slot_plan))
        events += self._problem_events((*snapshot.problems, *problems))
        return Decision(tuple(map(self._signed, events)), self.plan != before)

    def _answered(self, now: float) -> list[Event]:
        if self.stale is None:
            return []
        fields = {"was": self.stale, "seconds": round(now - self._stale_since, 3)}
        self.stale = None
        return [Event("Cluster answered again", fields=fields)]

    def _next_plan(self, snapshot: ClusterSnapshot, counts: bool) -> tuple[GatewayPlan, list[str]]:
        index = SnapshotIndex(snapshot)
        entries = self._registry.update(snapshot.registry, index.unreadable_serials, counts)
        problems: list[str] = []
        cards: dict[str, _Card] = {}
        for entry in entries:
            cards[entry.serial], found = self._next_card(entry, index, counts)
            problems += found
        self._cards = cards
        slots = plan_slots(entries)
        self.surplus = slots.surplus
        problems += [
            f"card {serial} joined after 8 others: it has no slot and is not used" for serial in slots.surplus
        ]
        by_serial = {entry.serial: entry for entry in entries}
        planned = tuple(
            _planned(slot, by_serial[serial], cards[serial]) for slot, serial in slots.slots.items()
        )
        return GatewayPlan(self._identity.uuid or "", self._num_dbs, planned), problems

    def _next_card(
        self, entry: RegistryEntry, index: SnapshotIndex, counts: bool
    ) -> tuple[_Card, tuple[str, ...]]:
        known = self._cards.get(entry.serial)
        in_use = known.in_use if known else InUse()
        found = index.find(entry, in_use)
        if known is None:
            state = first_state(found.sighting)
        else:
            state = next_state(known.state, found.sighting, counts, self._limits)
        record = found.record
        if record is not None and record.paths:
            in_use = InUse((record.host, record.device), record.paths, record.uuid)
        return _Card(state, in_use), found.problems

    def _problem_events(self, problems: tuple[str, ...]) -> list[Event]:
        """Each problem once when it appears and once when it is gone."""
        before, self.problems = self.problems, tuple(dict.fromkeys(problems))
        new = [Event("Cluster problem", "error", {"problem": p}) for p in self.problems if p not in before]
        return new + [
            Event("Cluster problem solved", fields={"problem": p}) for p in before if p not in self.problems
        ]

    def _signed(self, event: Event) -> Event:
        """The event with the fingerprint of the plan that holds."""
        if self.plan is None:
            return event
        return replace(event, fields={**event.fields, "fingerprint": self.plan.fingerprint})


def _planned(slot: int, entry: RegistryEntry, card: _Card) -> PlannedCard:
    """A sick card keeps its connection; an absent one, or one of a disabled host, is disconnected."""
    reason = card.state.reason
    paths = card.in_use.paths if card.state.present and card.state.enabled else ()
    uuid = card.in_use.uuid if card.in_use.paths else entry.uuid
    return PlannedCard(slot, entry.serial, entry.nqn, uuid, paths, not reason, reason)


def _state_of(reason: str) -> CardState:
    """The state that gave a planned card its reason (the inverse of CardState.reason)."""
    return CardState(present=reason != "absent", enabled=reason != "host disabled", healthy=reason != "sick")
