"""Health of cards from what the exporters say: pure functions over records, samples and time.

A card is sick only on evidence about the card itself. An exporter that is away, a metric that is missing
or one with another serial is unknown; a new leader in its warm-up writes neither sick nor unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.model.cards import CardRecord, Health, HealthRecord


@dataclass(frozen=True, slots=True)
class HostSample:
    """What one host's exporter said: `status` maps serial to xdp_service_status, or `error` says why not."""

    status: Mapping[str, float]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One card's health as the samples show it, before it is compared with what is written."""

    health: Health
    reason: str


NO_SAMPLE = HostSample({}, "its exporter was not asked")


def judge(card: CardRecord, sample: HostSample) -> Verdict:
    """Return the verdict on one card from its host's sample."""
    if sample.error:
        return Verdict(Health.UNKNOWN, sample.error)
    value = sample.status.get(card.xdp_serial)
    if value is None:
        return Verdict(Health.UNKNOWN, f"the exporter of {card.host} has no xdp_service_status for it")
    if value == 1:
        return Verdict(Health.HEALTHY, "its storage service runs")
    if value == 0:
        return Verdict(Health.SICK, "its storage service does not run (xdp_service_status 0)")
    return Verdict(Health.UNKNOWN, f"xdp_service_status is {value:g}, neither 0 nor 1")


def next_record(
    card: CardRecord, verdict: Verdict, previous: HealthRecord | None, now: float, warming_up: bool
) -> HealthRecord | None:
    """Return the record to write, or None when what is written stays. `now` is Unix seconds.

    `since` changes with the health only; `last_known` remembers the last answer that was not unknown. A
    record of another serial says nothing about this card.
    """
    if warming_up and verdict.health is not Health.HEALTHY:
        return None
    known = previous if previous is not None and previous.xdp_serial == card.xdp_serial else None
    if known is not None and known.health_xdp is verdict.health and known.reason == verdict.reason:
        return None
    same_health = known is not None and known.health_xdp is verdict.health
    last_known = verdict.health
    if last_known is Health.UNKNOWN and known is not None:
        last_known = known.last_known
    return HealthRecord(
        host=card.host,
        device=card.device,
        xdp_serial=card.xdp_serial,
        health_xdp=verdict.health,
        last_known=last_known,
        since=known.since if known is not None and same_health else now,
        reason=verdict.reason,
    )


@dataclass(frozen=True, slots=True)
class HealthChanges:
    """What the leader writes in one cycle: records to put, and (host, device) whose card is gone."""

    put: tuple[HealthRecord, ...]
    gone: tuple[tuple[str, str], ...]


def plan_health(
    cards: Iterable[CardRecord],
    written: Iterable[HealthRecord],
    samples: Mapping[str, HostSample],
    now: float,
    warming_up: bool,
    keep: frozenset[tuple[str, str]] = frozenset(),
) -> HealthChanges:
    """Compare the samples of all asked hosts with the health that is written.

    Cards of hosts without a sample (disabled ones) are left alone. `keep` names the (host, device) whose
    card record could not be read: unknown is not gone.
    """
    listed = {(card.host, card.device): card for card in cards}
    previous = {(record.host, record.device): record for record in written}
    put = [
        record
        for key, card in sorted(listed.items())
        if card.host in samples
        and (record := _change(card, samples[card.host], previous.get(key), now, warming_up)) is not None
    ]
    gone = [key for key in sorted(previous) if key not in listed and key not in keep]
    return HealthChanges(tuple(put), tuple(gone))


def _change(
    card: CardRecord, sample: HostSample, previous: HealthRecord | None, now: float, warming_up: bool
) -> HealthRecord | None:
    return next_record(card, judge(card, sample), previous, now, warming_up)
