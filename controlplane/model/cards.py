"""Cards, hosts and health as the cluster knows them (records of DESIGN.md, "Records in etcd")."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal


class Health(IntEnum):
    """Health of a card as the leader writes it."""

    HEALTHY = 0
    SICK = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True, order=True)
class CardPath:
    """One way to reach a card over NVMe-oF. `traddr` is a literal address in canonical spelling."""

    transport: Literal["tcp", "rdma"]
    traddr: str
    trsvcid: str


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """`/cluster/cards/<serial>`: created once, never overwritten with another identity."""

    serial: str
    nqn: str
    uuid: str
    join_seq: int


@dataclass(frozen=True, slots=True)
class CardRecord:
    """`/targets/<host>/cards/<device>`: what a host says it has. `device` (xdpN) is only an attribute."""

    host: str
    device: str
    xdp_serial: str
    nqn: str
    uuid: str
    paths: tuple[CardPath, ...]
    state: str = "running"


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """`/targets/<host>/health/<device>`: the leader's verdict; ignored when its serial is not the card's."""

    host: str
    device: str
    xdp_serial: str
    health_xdp: Health
    last_known: Health
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class HostRecord:
    """`/targets/<host>/node`."""

    host: str
    enabled: bool
    witness: bool
    addresses: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """`/cluster/config`: the cluster's identity. `created` is Unix seconds."""

    name: str
    created: float
    uuid: str


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record that is there but can't be understood, so that it is unknown and not absent.

    `host` is empty for `config` and `registry`; `name` is the device (`card`, `health`) or the serial
    (`registry`).
    """

    kind: Literal["config", "registry", "node", "card", "health"]
    host: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Everything below `/cluster/` and `/targets/` at one etcd revision.

    `problems` holds one sentence for each record that could not be read, and `unreadable` says which these
    are; such a record is unknown, not absent: its card keeps what it had.
    """

    revision: int
    config: ClusterConfig | None
    registry: tuple[RegistryEntry, ...] = ()
    hosts: tuple[HostRecord, ...] = ()
    cards: tuple[CardRecord, ...] = ()
    health: tuple[HealthRecord, ...] = ()
    problems: tuple[str, ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()
