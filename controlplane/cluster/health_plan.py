"""One cycle of the leader's health work as a pure function: records and evidence in, writes and state out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.cluster import damping
from controlplane.cluster.damping import DampedHealth
from controlplane.cluster.evidence import Evidence
from controlplane.cluster.packet_loss import DEFAULT_LIMITS, LossLimits, find_loss
from controlplane.cluster.verdicts import after_loss, judge, known_verdict, next_record, written_verdict
from controlplane.model.cards import CardRecord, Health, HealthRecord

# Host, device, serial: another card in the same place has a history of its own.
CardKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class HealthInput:
    """What one cycle knows.

    `keep` names the (host, device) whose card record can't be read: unknown is not gone. `pinging` are the
    hosts whose ping exporter is expected. `now` is Unix seconds.
    """

    cards: tuple[CardRecord, ...]
    written: tuple[HealthRecord, ...]
    evidence: Evidence
    now: float
    warming_up: bool = False
    keep: frozenset[tuple[str, str]] = frozenset()
    pinging: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HealthPlan:
    """What the leader writes: records to put, and (host, device) whose card is gone; and what it tells.

    `notes` has one sentence for each serial about loss that is not acted on.
    """

    put: tuple[HealthRecord, ...]
    gone: tuple[tuple[str, str], ...]
    state: Mapping[CardKey, DampedHealth] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def plan_health(
    given: HealthInput, state: Mapping[CardKey, DampedHealth], limits: LossLimits = DEFAULT_LIMITS
) -> HealthPlan:
    """Compare the evidence with the health that is written.

    Cards of hosts without a sample (disabled ones) are left alone.
    """
    previous = {(record.host, record.device): record for record in given.written}
    listed = {(card.host, card.device): card for card in given.cards}
    put: list[HealthRecord] = []
    damped: dict[CardKey, DampedHealth] = {}
    notes: dict[str, str] = {}
    for place, card in sorted(listed.items()):
        if card.host not in given.evidence.samples:
            continue
        key = (*place, card.xdp_serial)
        damped[key], note = _look(card, given, previous.get(place), state.get(key), limits)
        if note:
            notes[card.xdp_serial] = note
        record = _record(card, damped[key], previous.get(place), given)
        if record is not None:
            put.append(record)
    gone = [place for place in sorted(previous) if place not in listed and place not in given.keep]
    return HealthPlan(tuple(put), tuple(gone), damped, notes)


def _look(
    card: CardRecord,
    given: HealthInput,
    written: HealthRecord | None,
    before: DampedHealth | None,
    limits: LossLimits,
) -> tuple[DampedHealth, str]:
    """The card's state after this cycle, and what is to be told of packet loss."""
    known = before.known if before is not None else known_verdict(card, written)
    loss = find_loss(card, given.evidence.loss, limits)
    verdict = judge(card, given.evidence.samples[card.host], loss)
    verdict = after_loss(verdict, known, loss, measured=bool(given.pinging - {card.host}))
    if before is None:
        return damping.first(verdict, written_verdict(card, written), known), loss.note
    return damping.step(before, verdict), loss.note


def _record(
    card: CardRecord, state: DampedHealth, written: HealthRecord | None, given: HealthInput
) -> HealthRecord | None:
    """The record to write. Sick is written only in a cycle that itself sees the card sick."""
    if state.shown.health is Health.SICK and state.seen.health is not Health.SICK:
        return None
    return next_record(card, state.shown, written, given.now, given.warming_up)


def counts(states: Iterable[DampedHealth]) -> str:
    """`2 healthy, 1 sick`, as shown after damping."""
    shown = [state.shown.health for state in states]
    words = [f"{shown.count(health)} {health.name.lower()}" for health in Health if health in shown]
    return ", ".join(words)
