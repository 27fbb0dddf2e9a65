"""The cluster's records, written into a real etcd through its JSON gateway, not the client under test."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace

from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
)
from controlplane.store import codec, schema
from tests.support.etcd import EtcdMember


@dataclass(frozen=True)
class TestCard:
    """One card, alone on its host."""

    __test__ = False

    serial: str
    join_seq: int
    port: int = 4420
    device: str = "xdp0"

    @property
    def host(self) -> str:
        return f"host-{self.serial}"

    @property
    def nqn(self) -> str:
        return f"nqn.2024-01.test:{self.serial}"


@dataclass
class ClusterRecords:
    """Writes records through one etcd member. `uuid` is the cluster's."""

    member: EtcdMember
    uuid: str
    cards: dict[str, TestCard] = field(default_factory=dict)

    def create(self) -> None:
        """`/cluster/config`."""
        self.put(schema.CONFIG_KEY, codec.encode_config(ClusterConfig("test", 0.0, self.uuid)))

    def join(self, serial: str) -> TestCard:
        """Register a new card and list it as healthy."""
        card = TestCard(serial, len(self.cards) + 1)
        entry = RegistryEntry(serial, card.nqn, "", card.join_seq)
        self.put(schema.node_key(card.host), codec.encode_host(HostRecord(card.host, True, False)))
        self.health(card, Health.HEALTHY)
        self.list(card)
        self.put(schema.registry_key(serial), codec.encode_registry(entry))
        return card

    def list(self, card: TestCard) -> None:
        """`/targets/<host>/cards/<device>`."""
        path = CardPath("tcp", "127.0.0.9", str(card.port))
        record = CardRecord(card.host, card.device, card.serial, card.nqn, "", (path,))
        self.put(schema.card_key(card.host, card.device), codec.encode_card(record))
        self.cards[card.serial] = card

    def unlist(self, card: TestCard) -> None:
        """Remove the card's records; the registry keeps it."""
        self.delete(schema.card_key(card.host, card.device))
        self.delete(schema.health_key(card.host, card.device))

    def come_back(self, card: TestCard, device: str, port: int) -> TestCard:
        """List the card under another device name and port."""
        moved = replace(card, device=device, port=port)
        self.list(moved)
        self.health(moved, Health.HEALTHY)
        return moved

    def health(self, card: TestCard, health: Health) -> None:
        """`/targets/<host>/health/<device>`."""
        record = HealthRecord(card.host, card.device, card.serial, health, Health.HEALTHY, 0.0, "test")
        self.put(schema.health_key(card.host, card.device), codec.encode_health(record))

    def put(self, key: bytes, value: bytes) -> None:
        """Write one key."""
        self.member.call("kv/put", {"key": _text(key), "value": _text(value)})

    def delete(self, key: bytes) -> None:
        """Delete one key."""
        self.member.call("kv/deleterange", {"key": _text(key)})


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
