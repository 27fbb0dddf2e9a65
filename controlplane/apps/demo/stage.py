"""The processes of the story: storage hosts, software cards, and one gateway pod. Started and ended here."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from controlplane.apps.demo.errors import DemoError
from controlplane.apps.demo.observers import ClusterView, DataplaneView
from controlplane.apps.demo.processes import Child, descendants, find_program, python_module, run_to_end
from controlplane.apps.demo.replay import Replay
from controlplane.apps.demo.settings import (
    CLUSTER_NAME,
    CYCLE_SECONDS,
    GATEWAY_HOST,
    HOSTS,
    POLL_MS,
    CardSpec,
    DemoSettings,
    Layout,
)
from controlplane.apps.demo.waiting import wait_until

IO_TIMEOUT_MS = 2000
_MIB = 1 << 20
_SHARED_MEMORY_BYTES = 512 * _MIB
_COMMAND_SECONDS = 60.0
_HOST_SECONDS = 30.0


class Stage:
    """A context manager: whatever happens, every process that it started is ended and nothing else."""

    def __init__(self, layout: Layout, settings: DemoSettings, card_bytes: int) -> None:
        self.layout = layout
        self._settings = settings
        self._card_bytes = max(card_bytes, 64 * _MIB)
        self._softcard = find_program("akv-softcard")
        self._children: list[Child] = []
        self.hosts: dict[int, Child] = {}
        self.cards: dict[str, Child] = {}
        self._exporters: list[Child] = []
        self.dataplane: Child | None = None
        self.control: Child | None = None
        self.cluster = ClusterView(
            tuple(f"{layout.address(host)}:{layout.ports.api}" for host in range(1, HOSTS + 1))
        )
        self.dataplane_view = DataplaneView(self.dataplane_socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _unhurried():
            self.cluster.close()
            self.dataplane_view.close()
            for child in reversed(self._children):
                if child.running:
                    child.interrupt()
            for child in reversed(self._children):
                child.stop()

    @property
    def client_socket(self) -> Path:
        """The gateway's Unix socket for clients."""
        return self.layout.path("run", "gateway.sock")

    @property
    def dataplane_socket(self) -> Path:
        """The Unix socket between the pod's two processes."""
        return self.layout.path("run", "dataplane.sock")

    @property
    def status_file(self) -> Path:
        """What the control process writes for monitoring."""
        return self.layout.path("run", "status.prom")

    def check_alive(self) -> None:
        """Raise DemoError where a process ended that should run."""
        for child in (
            *self.hosts.values(),
            *self._exporters,
            *self.cards.values(),
            self.dataplane,
            self.control,
        ):
            if child is not None:
                child.check()

    def start_host(self, host: int) -> None:
        """The cluster service of a storage host, and its card exporter."""
        name, address, ports = self.layout.host_name(host), self.layout.address(host), self.layout.ports
        card_cli = (
            f"{self._softcard} list --json --state-dir {shlex.quote(str(self.layout.card_state(host)))}"
        )
        config = self.layout.path(name, "config", "awide-cluster.env")
        values = {
            "AWC_HOST": name,
            "AWC_ADDRESS": address,
            "AWC_API_PORT": ports.api,
            "AWC_ETCD_CLIENT_PORT": ports.etcd_client,
            "AWC_ETCD_PEER_PORT": ports.etcd_peer,
            "AWC_EXPORTER_PORT": ports.exporter,
            "AWC_DATA_DIR": self.layout.path(name, "etcd"),
            "AWC_LOG_DIR": self.layout.path("log", name),
            "AWC_CARD_CLI": card_cli,
            "AWC_CYCLE_SECONDS": CYCLE_SECONDS,
            # The demo runs no Prometheus: the leader asks the card exporters itself.
            "AWC_METRICS": "exporters",
            "AWC_PING_PORT": ports.ping,
            "AWC_MONITORING_DIR": self.layout.path(name, "monitoring", "x").parent,
            "AWC_SECURITY": "insecure-loopback",
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        self.hosts[host] = self._start(
            name, python_module("controlplane.apps.awide_cluster", "--config-dir", str(config.parent))
        )
        listen = ["--listen", f"{address}:{ports.exporter}", "--card-cli", card_cli]
        exporter = python_module("controlplane.exporters.card", *listen)
        self._exporters.append(self._start(f"{name}-exporter", exporter))

    def start_card(self, card: CardSpec, *, device: str | None = None, port: int | None = None) -> None:
        """A software card; its file survives it, so a card of the same serial has the same blocks again."""
        where = f"{self.layout.address(card.host)}:{port or self.layout.ports.card}"
        command = [self._softcard, "serve", "--id", device or card.device, "--serial", card.serial]
        command += ["--nqn", card.nqn, "--listen", where, "--capacity", str(self._card_bytes)]
        command += ["--state-dir", str(self.layout.card_state(card.host))]
        command += ["--file", str(self.layout.path("media", card.serial))]
        self.cards[card.serial] = self._start(f"card-{card.serial}", command)

    def form_cluster(self, progress: Callable[[str], None]) -> None:
        """One quorum of all hosts, by the operator's own commands."""
        self._wait_for_hosts()
        self._clustercli(1, "create_cluster", "--name", CLUSTER_NAME)
        progress(f"cluster {CLUSTER_NAME!r} created on {self.layout.host_name(1)}")
        for host in range(2, HOSTS + 1):
            self._clustercli(host, "add_node", "-n", f"{self.layout.address(1)}:{self.layout.ports.api}")
        self.wait_until(self._quorum_complete, 60.0, f"{HOSTS} etcd members that vote")

    def start_gateway(self) -> None:
        """The gateway pod: dataplane and control process, of one configuration."""
        layout, ports = self.layout, self.layout.ports
        hosts = ",".join(f"{layout.address(host)}:{ports.api}" for host in range(1, HOSTS + 1))
        document = {
            "storage_backend": "kv-nvme",
            "cluster_hostname": hosts,
            "cluster_security": "insecure-loopback",
            "cluster_poll_ms": POLL_MS,
            "io_timeout_ms": IO_TIMEOUT_MS,
            "port": ports.gateway,
            "bind_address": layout.address(GATEWAY_HOST),
            "shared_memory_size": _SHARED_MEMORY_BYTES,
            "thread_pool_size": 1,
            "status_file": str(self.status_file),
            "dataplane_socket": str(self.dataplane_socket),
            "client_socket": str(self.client_socket),
            "state_dir": str(layout.path("run", "state")),
        }
        self._gateway_yaml.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        command = python_module("dataplane.main", "--config", str(self._gateway_yaml))
        self.dataplane = self._start("akv-dataplane", command)
        self.start_control()

    def start_control(self) -> None:
        """The pod's control process, the first time or again."""
        command = python_module("controlplane.apps.akv_gateway", "--config", str(self._gateway_yaml))
        self.control = self._start("akv-gateway", command)

    def start_replay(self, name: str, arguments: Sequence[str]) -> Replay:
        """An `akv-bench replay` against the gateway."""
        fixed = ["--socket", str(self.client_socket), "--block-bytes", str(self._settings.block_bytes)]
        replay = Replay(name, [*fixed, *arguments], self.layout.log(name))
        self._children.append(replay.child)
        return replay

    def etcd_pids(self) -> list[int]:
        """The hosts' etcd members."""
        found = [pid for host in self.hosts.values() for pid in descendants(host.pid, "etcd")]
        if len(found) != HOSTS:
            raise DemoError(f"{len(found)} etcd members run below the cluster services, expected {HOSTS}")
        return found

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait with every process watched; raises NotInTimeError, or DemoError where a process ended."""
        wait_until(condition, seconds, what, check=self.check_alive)

    @property
    def _gateway_yaml(self) -> Path:
        return self.layout.path("gateway.yaml")

    def _start(self, name: str, command: list[str]) -> Child:
        child = Child(name, command, self.layout.log(name))
        self._children.append(child)
        return child

    def _wait_for_hosts(self) -> None:
        def all_answer() -> bool:
            return all(self.cluster.host_answers(position) for position in range(HOSTS))

        self.wait_until(all_answer, _HOST_SECONDS, "every host serves the cluster API")

    def _quorum_complete(self) -> bool:
        answer = self.cluster.get()
        return answer is not None and answer.etcd_quorum.members == HOSTS

    def _clustercli(self, host: int, *arguments: str) -> None:
        target = f"{self.layout.address(host)}:{self.layout.ports.api}"
        command = python_module("clustercli.main", "--host", target, *arguments)
        run_to_end(command, _COMMAND_SECONDS, f"clustercli {' '.join(arguments)}")


@contextmanager
def _unhurried() -> Iterator[None]:
    """Another Ctrl-C does not keep the processes from being ended; that takes seconds at most."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
