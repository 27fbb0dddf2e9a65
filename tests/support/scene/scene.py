"""The scene: storage hosts, two gateway pods and an operator, all well at the start of each test."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from controlplane.apps.demo.replay import bench
from controlplane.apps.demo.requests import Placement
from tests.hosts import HostNetwork, host_network
from tests.support.procs import ROOT, python_environment, wait_until
from tests.support.scene.console import Console, health_of
from tests.support.scene.gateway import DATAPLANE_READY, Gateway
from tests.support.scene.storage import CardSpec, StorageHost, running, wait_for
from tests.support.scene.traffic import Stream, Traffic
from tests.support.scene.watched import WatchedHost

CLUSTER = "kv-cache"
SETTLE_SECONDS = 60.0
SLOW_SECONDS = 4.0
# Between two looks of a wait: most of them run clustercli, and the two cores are the scene's too.
LOOK_SECONDS = 0.2
ROWS = 60
REQUESTS_A_SECOND = 100
FIRST_CARDS = {"storage-1": "L0P0", "storage-2": "L1P0", "storage-3": "L2P0"}

T = TypeVar("T")


@dataclass(frozen=True)
class Pace:
    """Intervals of the cluster services and of the gateways."""

    cycle_seconds: float = 0.5
    warmup_cycles: int = 2
    poll_ms: int = 200
    # Short for a test, and no machine is so loaded that a card which is well needs as long.
    io_timeout_ms: int = 4000

    def settings(self) -> dict[str, str]:
        """Those of awide-cluster."""
        return {
            "AWC_CYCLE_SECONDS": str(self.cycle_seconds),
            "LEADER_WARMUP_CYCLES": str(self.warmup_cycles),
        }


BRISK, PRODUCTION = Pace(), Pace(6.0, 3, 1000, 5000)


@dataclass
class Scene:
    """What runs, and how to ask about it. Hosts by name; `members` are those in the cluster."""

    network: HostNetwork
    directory: Path
    console: Console
    trace: Path
    pace: Pace = BRISK
    monitored: bool = False
    secure: bool = False
    # Of awide-cluster on every host, besides those of the pace.
    settings: Mapping[str, str] = field(default_factory=dict)
    hosts: dict[str, StorageHost] = field(default_factory=dict)
    members: list[StorageHost] = field(default_factory=list)
    gateways: list[Gateway] = field(default_factory=list)
    # What took long to come, for whoever asks where the time goes.
    slow_waits: list[str] = field(default_factory=list)
    _replays: int = 0

    def add_host(self, name: str, *specs: CardSpec, **settings: str) -> StorageHost:
        """A host with its cards, exporter and service running; in no cluster yet."""
        host = self.new_host(name, *specs, **settings)
        host.start_all()
        return host

    def new_host(self, name: str, *specs: CardSpec, **settings: str) -> StorageHost:
        """A host on which nothing runs yet."""
        kind = WatchedHost if self.monitored else StorageHost
        host = kind.of(self.network.add(name), self.directory / name, *specs, secure=self.secure)
        self.hosts[name] = host
        host.configure(**{**self.pace.settings(), **self.settings, **settings})
        return host

    def add_first_hosts(self) -> None:
        """Three hosts with a card each in one cluster; they start side by side."""
        for name, serial in FIRST_CARDS.items():
            self.new_host(name, CardSpec(serial))
        self.start_hosts(self.hosts.values())
        first, *others = self.hosts.values()
        self.create_cluster(first)
        for host in others:
            self.join(host)

    @staticmethod
    def start_hosts(hosts: Iterable[StorageHost]) -> None:
        """Start whatever is not running on these hosts."""
        wait_for("ready", [program for host in hosts for program in host.begin_all()])

    def add_gateway(self, name: str) -> Gateway:
        """A pod that is started; it waits for cards."""
        gateway = self.new_gateway(name)
        gateway.start()
        return gateway

    def start_gateways(self) -> None:
        """Start what is not running of the gateways, side by side."""
        wait_for(DATAPLANE_READY, [program for gateway in self.gateways for program in gateway.begin()])
        for gateway in self.gateways:
            gateway.start()

    def new_gateway(self, name: str) -> Gateway:
        """A pod of which nothing runs yet."""
        directory = self.directory / name
        settings: dict[str, Any] = {
            "cluster_hostname": ",".join(host.api for host in self.members),
            "cluster_poll_ms": self.pace.poll_ms,
            "io_timeout_ms": self.pace.io_timeout_ms,
            "cluster_security": "mtls" if self.secure else "insecure-loopback",
        }
        if self.secure:
            settings |= self._gateway_certificate(name, directory / "pki")
        gateway = Gateway(self.network.add(name), directory, settings)
        self.gateways.append(gateway)
        return gateway

    def _gateway_certificate(self, name: str, out: Path) -> dict[str, str]:
        """`clustercli pki issue` for a gateway; its lines in gateway.yaml."""
        order = ("pki", "issue", "--role", "gateway", "--name", name, "--out", str(out))
        issued = self.console.cli(self.members[0], *order).document()
        return {f"cluster_{kind}": issued[kind] for kind in ("ca", "cert", "key")}

    def create_cluster(self, host: StorageHost) -> None:
        """`clustercli create_cluster` on the first host."""
        self.console.cli(host, "create_cluster", "--name", CLUSTER).document()
        self._joined(host)

    def join(self, host: StorageHost) -> None:
        """`clustercli add_node` on a host; waits until it is in the cluster, not until it votes."""
        self.add_node(host, self.members[0])
        self._joined(host)

    def add_node(self, host: StorageHost, via: StorageHost) -> None:
        """`clustercli add_node -n via` on a host, with a fresh token where there are certificates."""
        token: list[str] = []
        if self.secure:
            token = ["--token", self.console.cli(via, "pki", "token").document()["token"]]
        self.console.cli(host, "add_node", "-n", via.api, *token).document()

    def _joined(self, host: StorageHost) -> None:
        self.members.append(host)
        if isinstance(host, WatchedHost):
            host.start_prometheus()

    def wait(
        self,
        probe: Callable[[], T | None],
        what: str,
        seconds: float = SETTLE_SECONDS,
        every: float = LOOK_SECONDS,
    ) -> T:
        """Wait for a condition; what the gateways and the hosts say is told when it does not come."""
        began = time.monotonic()
        try:
            return wait_until(probe, what, seconds, every)
        except AssertionError as error:
            error.add_note(self.describe())
            raise
        finally:
            if (took := time.monotonic() - began) > SLOW_SECONDS:
                self.slow_waits.append(f"{took:.1f} s until {what}")

    def ask(self) -> dict[str, Any] | None:
        """get_cluster of the first host that answers."""
        answers = (self.console.cluster(host) for host in self.members if running(host.service))
        return next((answer for answer in answers if answer is not None), None)

    def leader(self, asked: StorageHost | None = None) -> StorageHost:
        """The host that leads, as `asked` (else any host) says."""

        def probe() -> StorageHost | None:
            document = self.console.cluster(asked) if asked is not None else self.ask()
            return self.hosts.get(str(document["leader"])) if document else None

        return self.wait(probe, "a leader")

    def wait_health(self, expected: Mapping[str, int], asked: StorageHost | None = None) -> dict[str, Any]:
        """Until clustercli shows this health_xdp for these cards; the get_cluster document that does."""

        def probe() -> dict[str, Any] | None:
            document = self.console.cluster(asked) if asked is not None else self.ask()
            holds = expected.items() <= health_of(document).items()
            return document if holds else None

        return self.wait(probe, f"health {dict(expected)}")

    def wait_in_use(self, serials: set[str], seconds: float = SETTLE_SECONDS) -> None:
        """Until every gateway uses exactly these cards."""
        self.wait(lambda: self.use(serials), f"every gateway uses {sorted(serials)}", seconds)

    def use(self, serials: set[str]) -> bool:
        """Every gateway uses exactly these cards now."""
        return all(gateway.in_use() == serials for gateway in self.gateways)

    def wait_same_plan(self) -> str:
        """Until the gateways and clustercli show one fingerprint; that one."""

        def probe() -> str:
            document = self.ask()
            found = {gateway.fingerprint() for gateway in self.gateways}
            return found.pop() if document and found == {document["fingerprint"]} else ""

        return self.wait(probe, "one fingerprint everywhere")

    def placement(self) -> Placement:
        """The placement that all gateways serve."""
        found = [gateway.placement() for gateway in self.gateways]
        assert len({placement.fingerprint for placement in found}) == 1
        return found[0]

    @property
    def serials(self) -> set[str]:
        """Cards of the members."""
        return {serial for host in self.members for serial in host.specs}

    def watched(self) -> list[WatchedHost]:
        """The members of a monitored scene."""
        return [host for host in self.members if isinstance(host, WatchedHost)]

    def heal(self) -> None:
        """Undo every fault and wait until all is well: the start of each test, also after one that failed."""
        self.network.heal()
        for host in self.hosts.values():
            host.resume()
            host.tell_the_truth()
            host.clock.set(0)
        for gateway in self.gateways:
            gateway.clock.set(0)
        self.start_hosts(self.members)
        for watched in self.watched():
            watched.answer_pings()
            watched.start_prometheus()
        self.start_gateways()
        self.wait_well()

    def wait_well(self) -> None:
        """Until every member votes, every card is healthy, and every gateway uses all of them by one plan."""
        voters = len(self.members) - (1 - len(self.members) % 2)
        self.wait(self._members_run, "every host's etcd runs from its data and knows a leader")
        self.wait(lambda: self._voters() == voters, f"{voters} voters")
        self.wait(self._all_healthy, f"healthy cards {sorted(self.serials)}")
        self.wait_in_use(self.serials)
        self.wait(lambda: all(map(self.fresh, self.gateways)), "every gateway is fresh")
        self.wait_same_plan()

    def _members_run(self) -> bool:
        return all(
            (host.data_dir / "member" / "wal").is_dir() and self.console.etcd_is_well(host)
            for host in self.members
        )

    def _voters(self) -> int:
        """Voters of a list in which every member runs, as each running host tells it; -1 when they differ."""
        found = set()
        for host in self.members:
            document = self.console.members(host)
            members = document["members"] if document else []
            found.add(sum(not m["learner"] for m in members) if all(m["started"] for m in members) else -1)
        return found.pop() if len(found) == 1 else -1

    def _all_healthy(self) -> bool:
        return health_of(self.ask()) == dict.fromkeys(self.serials, 0)

    @staticmethod
    def fresh(gateway: Gateway) -> bool:
        """The gateway's status file says that the cluster answers."""
        return gateway.status().get(("xkv_gateway_cluster_answered", "")) == 1.0

    @contextmanager
    def traffic(self, *, stored: bool = True) -> Iterator[Traffic]:
        """A replay through each gateway; no wrong block. `stored`: the block begins with every row stored."""
        self._replays += 1
        slots = ",".join(map(str, self.placement().slots))
        rows = ["--trace", str(self.trace), "--requests", str(ROWS), "--rate", str(REQUESTS_A_SECOND)]
        rows += ["--loop", "--slots", slots]
        streams = [
            Stream(
                g.name,
                g.replay(f"replay-{self._replays}", [*rows, "--namespace", f"{g.name}.{self._replays}"]),
            )
            for g in self.gateways
        ]
        traffic = Traffic(streams, ROWS)
        try:
            if stored:
                traffic.first_pass()
            yield traffic
            traffic.finish()
        finally:
            traffic.stop()

    def describe(self) -> str:
        """What everyone says now, for messages."""
        lines = [f"clustercli: {json.dumps(self.ask())}"]
        for gateway in self.gateways:
            lines.append(f"{gateway.name}: uses {sorted(gateway.in_use())}, plan {gateway.fingerprint()}")
            lines += [f"    {json.dumps(event)}" for event in gateway.events()[-8:]]
        for host in self.hosts.values():
            lines += [f"{host.name}:", host.service.tail(6) if host.service else "not started"]
        return "\n".join(lines)


@contextmanager
def empty_scene(
    directory: Path,
    pace: Pace = BRISK,
    *,
    monitored: bool = False,
    secure: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Scene]:
    """A network with an operator and nothing else; everything in it is ended afterwards."""
    with ExitStack() as stack:
        network = stack.enter_context(host_network())
        console = Console(network.add("operator"))
        stack.callback(console.close)
        scene = Scene(network, directory, console, _trace(directory), pace, monitored, secure, settings or {})
        stack.callback(_end, scene)
        yield scene


@contextmanager
def three_hosts(
    directory: Path,
    pace: Pace = BRISK,
    *,
    monitored: bool = False,
    secure: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Scene]:
    """Three storage hosts with a card each in one cluster, and two gateways that use them; all well.

    `monitored`: with ping exporters, and a real Prometheus on each host that the leader asks. `secure`: with
    certificates on every connection of the control path. `settings`: more settings of awide-cluster.
    """
    with empty_scene(directory, pace, monitored=monitored, secure=secure, settings=settings) as scene:
        scene.add_first_hosts()
        for name in ("gpu-1", "gpu-2"):
            scene.new_gateway(name)
        scene.start_gateways()
        scene.wait_well()
        yield scene


def _end(scene: Scene) -> None:
    for gateway in scene.gateways:
        gateway.end()
    for host in scene.hosts.values():
        host.end()


def _trace(directory: Path) -> Path:
    """A made trace, so that a test does not depend on what lies beside the repository."""
    path = directory / "trace.jsonl"
    command = bench("generate-trace", "--requests", str(ROWS), "--output", str(path))
    subprocess.run(command, check=True, timeout=60, env=python_environment(), cwd=ROOT)
    return path
