"""Health of one card from the evidence of one cycle, and the record that follows: pure functions.

A card is sick only on evidence about the card itself, or when several hosts lose its data addresses. An
exporter that is away, a metric that is missing or one with another serial is unknown; a new leader in its
warm-up writes neither sick nor unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.cluster.evidence import HostSample
from controlplane.cluster.packet_loss import LossFinding
from controlplane.model.cards import CardRecord, Health, HealthRecord

LOSS = "packet loss"
NOT_REACHED_SINCE = "its storage service runs, but no host reached it since it was lost"
NO_FINDING = LossFinding()


@dataclass(frozen=True, slots=True)
class Verdict:
    """One card's health and why. `cause` stands for reasons that differ in details only."""

    health: Health
    reason: str
    cause: str = ""

    @property
    def kind(self) -> str:
        """What two verdicts of one cause have in common."""
        return self.cause or self.reason


def judge(card: CardRecord, sample: HostSample, loss: LossFinding = NO_FINDING) -> Verdict:
    """Return the verdict on one card from its host's sample and what other hosts see of its addresses."""
    status = _judge_status(card, sample)
    if status.health is not Health.SICK and loss.agreed:
        hosts = ", ".join(loss.losing)
        return Verdict(Health.SICK, f"{LOSS}: {hosts} don't reach its data addresses and reach others", LOSS)
    return status


def _judge_status(card: CardRecord, sample: HostSample) -> Verdict:
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


def after_loss(verdict: Verdict, known: Verdict | None, loss: LossFinding, measured: bool) -> Verdict:
    """A card that was lost is healthy again when a host reaches it, not when nobody looks any more.

    `known` is the last verdict that was not unknown; `measured` says whether any other host is to ping.
    """
    lost_before = known is not None and known.health is Health.SICK and known.cause == LOSS
    if verdict.health is not Health.HEALTHY or not lost_before or loss.reaching or not measured:
        return verdict
    return Verdict(Health.UNKNOWN, NOT_REACHED_SINCE)


def written_verdict(card: CardRecord, record: HealthRecord | None) -> Verdict | None:
    """The verdict that a record holds of this card; one of another serial says nothing about it."""
    if record is None or record.xdp_serial != card.xdp_serial:
        return None
    cause = LOSS if record.reason.startswith(f"{LOSS}:") else ""
    return Verdict(record.health_xdp, record.reason, cause)


def known_verdict(card: CardRecord, record: HealthRecord | None) -> Verdict | None:
    """The last verdict that was not unknown, as far as a record tells it."""
    written = written_verdict(card, record)
    if record is None or written is None or written.health is not Health.UNKNOWN:
        return written
    if record.last_known is Health.UNKNOWN:
        return None
    return Verdict(record.last_known, record.reason, LOSS if record.reason == NOT_REACHED_SINCE else "")


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
