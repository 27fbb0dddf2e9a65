"""The dataplane process under test: configuration, process, plans over gRPC."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import yaml
from akv.v1 import dataplane_pb2, dataplane_pb2_grpc

from controlplane.gateway.messages import plan_to_message
from controlplane.model.cards import CardPath, RegistryEntry
from controlplane.model.plan import GatewayPlan, PlannedCard
from controlplane.model.slots import plan_slots
from integration.client import Client, ClientConfig, client_class
from tests.support.addresses import LoopbackNet, free_port
from tests.support.procs import PATIENCE, Program, lasting_descriptors, python_module, wait_until
from tests.support.softcard import Card

CLUSTER = "6f3c1fb0-6a8f-4b5e-9d62-0c1b0a5d7e11"
RPC_SECONDS = 30.0


@dataclass(frozen=True)
class TestCard:
    """A card of a plan: memory cards need no address."""

    __test__ = False

    serial: str
    host: str = "127.0.0.1"
    port: int = 4420
    routable: bool = True

    @classmethod
    def of(cls, card: Card, *, routable: bool = True) -> TestCard:
        """A running software card."""
        return cls(card.serial, card.address[0], card.address[1], routable)

    @property
    def nqn(self) -> str:
        return f"nqn.2024-01.io.akv.test:{self.serial.lower()}"


def make_plan(cards: Sequence[TestCard], num_dbs: int = 128, cluster: str = CLUSTER) -> GatewayPlan:
    """The plan that the control process would make of cards that joined in this order."""
    registry = [RegistryEntry(card.serial, card.nqn, "", seq) for seq, card in enumerate(cards)]
    by_serial = {card.serial: card for card in cards}
    planned = tuple(
        PlannedCard(
            slot,
            serial,
            by_serial[serial].nqn,
            "",
            (CardPath("tcp", by_serial[serial].host, str(by_serial[serial].port)),),
            by_serial[serial].routable,
            "" if by_serial[serial].routable else "sick",
        )
        for slot, serial in plan_slots(registry).slots.items()
    )
    return GatewayPlan(cluster, num_dbs, planned)


class Dataplane:
    """Directory, configuration and process of one `akv-dataplane`. A context manager that ends it."""

    def __init__(self, directory: Path, net: LoopbackNet | None = None, **settings: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.host = (net or LoopbackNet.pick()).host(1)
        self.port = free_port(self.host)
        self.client_socket = directory / "gateway.sock"
        self.settings: dict[str, Any] = {
            "storage_backend": "kv-memory",
            "cluster_hostname": self.host,
            "cluster_security": "insecure-loopback",
            "bind_address": self.host,
            "port": self.port,
            "dataplane_socket": str(directory / "dataplane.sock"),
            "client_socket": str(self.client_socket),
            "state_dir": str(directory),
            "status_file": str(directory / "status.prom"),
            "shared_memory_size": 64 << 20,
            # No card that is well needs as long, however busy the machine.
            "io_timeout_ms": 5000,
            **settings,
        }
        self.program: Program | None = None
        self._channel: grpc.Channel | None = None
        self.sequence = 0

    def __enter__(self) -> Dataplane:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def config(self) -> Path:
        return self.directory / "gateway.yaml"

    @property
    def running(self) -> Program:
        assert self.program is not None
        return self.program

    def command(self) -> list[str]:
        """Writes the configuration; the command line that runs it."""
        self.config.write_text(yaml.safe_dump(self.settings))
        return python_module("dataplane.main", "--config", str(self.config))

    def start(self, env: Mapping[str, str] | None = None) -> Program:
        """Start the process and wait until it serves."""
        self.program = Program(self.command(), name="akv-dataplane", env=env)
        self.program.wait_event("Dataplane ready")
        self._channel = grpc.insecure_channel(
            f"unix:{self.settings['dataplane_socket']}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.sequence = 0
        return self.program

    def stop(self) -> None:
        """SIGTERM; a process that still runs must end by itself and cleanly."""
        self.forget_channel()
        if self.program is not None and self.program.returncode is None:
            assert self.program.stop() == 0, self.program.tail()

    def kill(self) -> None:
        """SIGKILL."""
        self.forget_channel()
        self.running.kill()

    def forget_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def stub(self) -> dataplane_pb2_grpc.DataplaneServiceStub:
        assert self._channel is not None
        return dataplane_pb2_grpc.DataplaneServiceStub(self._channel)

    def apply(self, cards: Sequence[TestCard], wait_active: bool = True, **plan: Any) -> GatewayPlan:
        """Give it the next plan over these cards, and wait until the routable ones are live."""
        made = make_plan(cards, **plan)
        self.sequence += 1
        request = dataplane_pb2.ApplyPlanRequest(plan=plan_to_message(made, self.sequence))
        self.stub.ApplyPlan(request, timeout=RPC_SECONDS)
        if wait_active:
            self.wait_active({card.serial for card in cards if card.routable})
        return made

    def status(self) -> dataplane_pb2.GetStatusResponse:
        answer = self.stub.GetStatus(dataplane_pb2.GetStatusRequest(), timeout=RPC_SECONDS)
        assert isinstance(answer, dataplane_pb2.GetStatusResponse)
        return answer

    def counter(self, name: str) -> int:
        return self.status().counters[name]

    def wait_active(self, serials: set[str], seconds: float = PATIENCE) -> None:
        def probe() -> bool:
            return {card.serial for card in self.status().cards if card.active} == serials

        wait_until(probe, f"active cards {sorted(serials)}", seconds)

    def wait_counter(self, name: str, value: int, seconds: float = PATIENCE) -> None:
        wait_until(lambda: self.counter(name) == value, f"{name} = {value}", seconds)

    def descriptors(self) -> int:
        return lasting_descriptors(self.running.pid)

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.running.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def client(self, **settings: Any) -> Client:
        """A strict client over the Unix socket; over TCP with socket=None. Connected, or refused."""
        defaults: dict[str, Any] = {
            "socket": str(self.client_socket),
            "port": self.port,
            "strict": True,
            "arena_bytes": 16 << 20,
            **settings,
        }
        defaults["host"] = self.host if defaults["socket"] is None else None
        made = client_class(None)(ClientConfig(**defaults))
        # A call before the first session would raise; a refused secret is told at once.
        made.wait_connected(PATIENCE)
        return made
