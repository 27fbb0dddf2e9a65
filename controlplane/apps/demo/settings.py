"""What the demo is asked for, and where everything of it lives."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.apps.demo.errors import DemoError

CLUSTER_NAME = "demo"
CYCLE_SECONDS = 1.0
POLL_MS = 1000
HOSTS = 3
GATEWAY_HOST = 10
# With fewer it may happen that a card has no dialog to lose.
LEAST_REQUESTS = 50


@dataclass(frozen=True, slots=True)
class CardSpec:
    """A software card: the host that has it (1..3), its device there, and its serial number."""

    host: int
    device: str
    serial: str

    @property
    def nqn(self) -> str:
        """The NVMe-oF name of its subsystem."""
        return f"nqn.2026-01.example.akv:{self.serial.lower()}"


# Box and port number as the manual names cards. The fourth shares the first host.
FIRST_CARDS = (CardSpec(1, "xdp0", "L0P0"), CardSpec(2, "xdp0", "L1P0"), CardSpec(3, "xdp0", "L2P0"))
FOURTH_CARD = CardSpec(1, "xdp1", "L0P1")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`requests` rows of `trace` (None: the published one where it is, else a made one), blocks of
    `block_bytes`."""

    requests: int = 1000
    block_bytes: int = 16384
    trace: Path | None = None
    report: Path | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of every host; the products' own where those are free on the demo's addresses."""

    api: int = 5000
    etcd_client: int = 2379
    etcd_peer: int = 2380
    exporter: int = 7891
    ping: int = 9427
    card: int = 4420
    gateway: int = 5557


@dataclass(frozen=True, slots=True)
class Layout:
    """A network of loopback addresses, a directory, and the ports."""

    directory: Path
    network: str
    ports: Ports = field(default_factory=Ports)

    def address(self, host: int) -> str:
        """Address of a host of the network."""
        return f"{self.network}.{host}"

    def host_name(self, host: int) -> str:
        """Name of a storage host."""
        return f"storage-{host}"

    def path(self, *parts: str) -> Path:
        """A path below the directory, whose folder exists."""
        path = self.directory.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.path("log", f"{name}.log")

    def card_state(self, host: int) -> Path:
        """The directory in which a host's software cards record themselves."""
        path = self.path("cards", self.host_name(host))
        path.mkdir(exist_ok=True)
        return path


def choose_layout(directory: Path) -> Layout:
    """A random loopback network on which every address has the standard ports free, else with free ports."""
    source = random.SystemRandom()
    network = f"127.{source.randint(1, 254)}.{source.randint(0, 254)}"
    addresses = [f"{network}.{host}" for host in (*range(1, HOSTS + 1), GATEWAY_HOST)]
    standard = Ports()
    taken: set[int] = set()

    def choose(port: int) -> int:
        chosen = port if _free(addresses, port) else _any_free(addresses, source, taken)
        taken.add(chosen)
        return chosen

    ports = Ports(
        api=choose(standard.api),
        etcd_client=choose(standard.etcd_client),
        etcd_peer=choose(standard.etcd_peer),
        exporter=choose(standard.exporter),
        ping=choose(standard.ping),
        card=choose(standard.card),
        gateway=choose(standard.gateway),
    )
    return Layout(directory, network, ports)


def _any_free(addresses: Iterable[str], source: random.Random, taken: set[int]) -> int:
    for _ in range(200):
        port = source.randint(20_000, 30_000)
        if port not in taken and _free(addresses, port):
            return port
    raise DemoError("no free TCP ports on loopback: end what listens on all addresses")


def _free(addresses: Iterable[str], port: int) -> bool:
    for address in addresses:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
