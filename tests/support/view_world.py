"""A small cluster as a gateway's view reads it, with a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    ClusterSnapshot,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
)
from controlplane.model.debounce import PollLimits
from controlplane.model.plan import GatewayPlan, PlannedCard
from controlplane.model.view import Decision, GatewayView

UUID = "8a7c1c1e-5a38-4cbd-8a70-000000000001"
OTHER = "8a7c1c1e-5a38-4cbd-8a70-000000000002"
LIMITS = PollLimits(sick_polls=3, absent_polls=3, interval=1.0)


@dataclass
class Card:
    """One card of the test cluster: alone on its host, as the records tell of it."""

    serial: str
    join_seq: int
    health: Health | None = Health.HEALTHY
    listed: bool = True
    port: int = 4420
    device: str = "xdp0"
    enabled: bool = True
    health_serial: str | None = None

    @property
    def host(self) -> str:
        return f"host-{self.serial}"

    @property
    def nqn(self) -> str:
        return f"nqn.2024-01.test:{self.serial}"

    def record(self) -> CardRecord:
        path = CardPath("tcp", "127.0.0.9", str(self.port))
        return CardRecord(self.host, self.device, self.serial, self.nqn, "", (path,))

    def health_record(self) -> HealthRecord:
        health = self.health if self.health is not None else Health.UNKNOWN
        serial = self.health_serial or self.serial
        return HealthRecord(self.host, self.device, serial, health, Health.UNKNOWN, 0.0, "test")


@dataclass
class World:
    """A cluster, its view and a clock; each read is one revision."""

    cards: list[Card]
    view: GatewayView = field(default_factory=lambda: GatewayView(LIMITS, 128))
    revision: int = 10
    now: float = 1000.0

    @classmethod
    def of(cls, count: int) -> World:
        return cls([Card(f"L0P{number}", number) for number in range(count)])

    def snapshot(self, **changes: object) -> ClusterSnapshot:
        self.revision += 1
        snapshot = ClusterSnapshot(
            self.revision,
            ClusterConfig("test", 0.0, UUID),
            tuple(RegistryEntry(c.serial, c.nqn, "", c.join_seq) for c in self.cards),
            tuple(HostRecord(c.host, c.enabled, False) for c in self.cards),
            tuple(c.record() for c in self.cards if c.listed),
            tuple(c.health_record() for c in self.cards if c.health is not None and c.listed),
        )
        return replace(snapshot, **changes)  # type: ignore[arg-type]

    def poll(self, **changes: object) -> Decision:
        self.now += LIMITS.interval
        return self.view.observe(self.snapshot(**changes), self.now, True)

    def early_read(self, **changes: object) -> Decision:
        self.now += 0.01
        return self.view.observe(self.snapshot(**changes), self.now, False)

    @property
    def plan(self) -> GatewayPlan:
        assert self.view.plan is not None
        return self.view.plan

    def planned(self, card: Card) -> PlannedCard:
        return next(planned for planned in self.plan.cards if planned.serial == card.serial)


def texts(decisions: Iterable[Decision]) -> list[str]:
    return [event.text for decision in decisions for event in decision.events]
