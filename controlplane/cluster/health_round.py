"""The leader's health work of one cycle: read the metrics, decide, write what changed, and say so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from controlplane.base.logging import get_logger
from controlplane.cluster.damping import DampedHealth
from controlplane.cluster.event_log import EventSink
from controlplane.cluster.evidence import Evidence, HostEndpoints
from controlplane.cluster.health_plan import CardKey, HealthInput, HealthPlan, counts, plan_health
from controlplane.cluster.metric_source import MetricSource
from controlplane.cluster.packet_loss import LossLimits
from controlplane.cluster.topics import Topic, Topics
from controlplane.model.cards import ClusterSnapshot
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership
from controlplane.store.writes import delete_health, write_health

log = get_logger("health")


class HealthRound:
    """Keeps the damping of all cards for one term. `wall_clock` gives Unix seconds."""

    def __init__(
        self,
        metrics: MetricSource,
        limits: LossLimits,
        events: EventSink,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._limits = limits
        self._events = events
        self._wall_clock = wall_clock
        self._state: Mapping[CardKey, DampedHealth] = {}
        self._topics = Topics()

    def begin_term(self) -> None:
        """Forget what an earlier term saw; the records say what was written since."""
        self._state = {}
        self._topics = Topics()

    async def run(
        self, client: EtcdClient, leadership: Leadership, picture: ClusterSnapshot, warming_up: bool
    ) -> str:
        """Run once; the part of the leader's sentence about health. Raises StoreError."""
        hosts = endpoints_of(picture)
        evidence = await self._metrics.read(hosts)
        given = HealthInput(
            cards=picture.cards,
            written=picture.health,
            evidence=evidence,
            now=self._wall_clock(),
            warming_up=warming_up,
            keep=frozenset((r.host, r.name) for r in picture.unreadable if r.kind == "card"),
            pinging=frozenset(host for host, endpoints in hosts.items() if endpoints.ping),
        )
        plan = plan_health(given, self._state, self._limits)
        self._tell(plan, evidence, witnesses_of(picture))
        self._state = plan.state
        await self._write(client, leadership, plan)
        return sentence(plan, evidence)

    def _tell(self, plan: HealthPlan, evidence: Evidence, witnesses: Iterable[str]) -> None:
        """Log what began and what ended, each once."""
        topics = {("packet loss not acted on", serial): note for serial, note in plan.notes.items()}
        topics |= {
            ("health flaps", key[2]): "recoveries are held back until they last"
            for key, state in plan.state.items()
            if state.flapping
        }
        if evidence.problem:
            topics["metrics not read", "Prometheus"] = evidence.problem
        else:
            topics |= _witness_topics(evidence, witnesses)
        news = self._topics.update(topics, blind=bool(evidence.problem))
        for (event, subject), reason in news.begun.items():
            log.warning(event, subject=subject, reason=reason)
            self._events.note("alarm", subject, f"{event}: {reason}")
        for event, subject in news.over:
            log.info(f"{event}: over", subject=subject)

    async def _write(self, client: EtcdClient, leadership: Leadership, plan: HealthPlan) -> None:
        for record in plan.put:
            await write_health(client, record, leadership)
            log.info(
                "health",
                serial=record.xdp_serial,
                host=record.host,
                health_xdp=record.health_xdp.name.lower(),
                reason=record.reason,
            )
            text = f"{record.device} of {record.host} is {record.health_xdp.name.lower()}: {record.reason}"
            self._events.note("health", record.xdp_serial, text)
        for host, device in plan.gone:
            await delete_health(client, host, device, leadership)


def _witness_topics(evidence: Evidence, witnesses: Iterable[str]) -> dict[Topic, str]:
    asked = ((host, evidence.samples.get(host)) for host in witnesses)
    return {
        ("witness not seen", host): sample.error
        for host, sample in asked
        if sample is not None and sample.error
    }


def endpoints_of(picture: ClusterSnapshot) -> dict[str, HostEndpoints]:
    """Where the exporters of the enabled hosts are; card exporters of hosts with cards, and of witnesses."""
    with_cards = {card.host for card in picture.cards}
    found = {}
    for record in picture.hosts:
        watched = record.enabled and (record.host in with_cards or record.witness)
        cards = record.addresses.get("exporter", "") if watched else ""
        ping = record.addresses.get("ping", "") if record.enabled else ""
        if cards or ping:
            found[record.host] = HostEndpoints(cards, ping, record.addresses.get("metrics_scheme") == "https")
    return found


def witnesses_of(picture: ClusterSnapshot) -> list[str]:
    """Enabled hosts that say that they have no cards."""
    return [record.host for record in picture.hosts if record.enabled and record.witness]


def sentence(plan: HealthPlan, evidence: Evidence) -> str:
    """What one cycle decided about health, and why."""
    shown = counts(plan.state.values())
    text = f"{len(plan.state)} cards" + (f": {shown}" if shown else "")
    changes = [
        f"{record.xdp_serial} is {record.health_xdp.name.lower()} ({record.reason})" for record in plan.put
    ]
    text += f", changed: {', '.join(changes)}" if changes else ", none changed"
    text += "".join(f", {serial}: {note}" for serial, note in sorted(plan.notes.items()))
    return text + (f", {evidence.problem}" if evidence.problem else "")
