"""Cluster hosts on loopback addresses: `awide-cluster`, a real etcd, a card CLI and an exporter each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from akv.v1 import cluster_pb2
from akv.v1.cluster_pb2_grpc import ClusterServiceStub, OperatorServiceStub

from clustercli import render, render_cards, render_diagnosis
from clustercli.call import CallError, call_cluster
from clustercli.target import Target
from controlplane.cluster.etcd_binary import find_etcd
from tests.support.addresses import LoopbackNet
from tests.support.cli import Outcome, run_cli
from tests.support.etcd import EtcdMember
from tests.support.procs import Program, python_environment, python_module, wait_until

CYCLE_SECONDS = 0.4
START_SECONDS = 60.0
API_PORT, EXPORTER_PORT = 5000, 7891


def card(number: int, state: str = "running", port: int = 4420) -> dict[str, Any]:
    """One card as a card CLI lists it."""
    return {
        "id": f"xdp{number}",
        "serial": f"L0P{number}",
        "nqn": f"nqn.2026-01.test:L0P{number}",
        "uuid": f"00000000-0000-0000-0000-00000000000{number}",
        "state": state,
        "addresses": [{"transport": "tcp", "traddr": "127.0.0.1", "trsvcid": str(port)}],
    }


@dataclass
class ClusterHost:
    """One host: its directory, its programs, and an executable card CLI whose behaviour the test sets."""

    name: str
    address: str
    directory: Path
    witness: bool = False
    secure: bool = False
    service: Program | None = field(default=None, repr=False)
    exporter: Program | None = field(default=None, repr=False)

    def place(self, command: list[str]) -> list[str]:
        """The command line that runs `command` on this host."""
        return command

    @property
    def exporter_security(self) -> tuple[str, ...]:
        """Options of exporters: with certificates they serve HTTPS."""
        return ("--tls-dir", str(self.pki_dir)) if self.secure else ()

    @property
    def exporters_wait(self) -> bool:
        """Whether exporters serve only once this host has joined a cluster, and has a certificate."""
        return self.secure and not (self.pki_dir / "cert.pem").exists()

    @property
    def environment(self) -> Mapping[str, str]:
        """What is added to the environment of the service."""
        return {}

    @property
    def api(self) -> str:
        return f"{self.address}:{API_PORT}"

    @property
    def asked_at(self) -> str:
        """What clustercli's --host names: the socket for root of a host with certificates, else its API."""
        return f"unix:{self.admin_socket}" if self.secure else self.api

    @property
    def admin_socket(self) -> Path:
        return self.directory / "admin.sock"

    @property
    def pki_dir(self) -> Path:
        return self.directory / "config" / "state" / "pki"

    @property
    def data_dir(self) -> Path:
        return self.directory / "etcd"

    @property
    def monitoring_dir(self) -> Path:
        return self.directory / "monitoring"

    @property
    def member_file(self) -> Path:
        return self.directory / "config" / "state" / "member.json"

    @property
    def etcd(self) -> EtcdMember:
        """The host's member as tests/support sees it, asked through etcd's own JSON gateway."""
        return EtcdMember(self.name, self.address, self.data_dir)

    @property
    def running(self) -> Program:
        assert self.service is not None, f"{self.name} was not started"
        return self.service

    def set_cards(self, *cards: dict[str, Any]) -> None:
        """Let the card CLI list these cards."""
        self.set_cli(f"cat <<'END'\n{json.dumps({'cards': list(cards)})}\nEND")

    def set_cli(self, script: str) -> None:
        """Let the card CLI be this shell script; replaced at once, so that no call sees half of it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / "cards.tmp"
        temporary.write_text(f"#!/bin/sh\n{script}\n")
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR)
        temporary.replace(self.directory / "cards")

    def configure(self, **extra: str) -> None:
        """Write the settings; `extra` overrides."""
        config = self.directory / "config"
        config.mkdir(parents=True, exist_ok=True)
        self.monitoring_dir.mkdir(exist_ok=True)
        values = {
            "AWC_HOST": self.name,
            "AWC_ADDRESS": self.address,
            "AWC_DATA_DIR": str(self.data_dir),
            "AWC_LOG_DIR": str(self.directory / "log"),
            "AWC_ETCD_BINARY": str(_fast_etcd(self.directory)),
            "AWC_CARD_CLI": str(self.directory / "cards"),
            # The listed cards are words of a script: nobody answers for them.
            "AWC_CARD_CHECK_SECONDS": "0",
            "AWC_CYCLE_SECONDS": str(CYCLE_SECONDS),
            "AWC_WITNESS": str(int(self.witness)),
            "AWC_METRICS": "exporters",
            "AWC_MONITORING_DIR": str(self.monitoring_dir),
            "AWC_SECURITY": "mtls" if self.secure else "insecure-loopback",
            "AWC_EXPORTER_TLS": str(int(self.secure)),
            "AWC_ADMIN_SOCKET": str(self.admin_socket),
            **extra,
        }
        lines = [f"{key}={value}\n" for key, value in values.items()]
        (config / "awide-cluster.env").write_text("".join(lines))

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        self.begin().wait_event("ready", START_SECONDS)

    def begin(self) -> Program:
        """Start the service."""
        arguments = ("--config-dir", str(self.directory / "config"))
        command = self.place(python_module("controlplane.apps.awide_cluster", *arguments))
        self.service = Program(command, env=python_environment(self.environment), name=self.name)
        return self.service

    def start_exporter(self) -> None:
        """Start the card exporter and wait until it is ready."""
        event = "no certificate yet" if self.exporters_wait else "ready"
        self.begin_exporter().wait_event(event, START_SECONDS)

    def begin_exporter(self) -> Program:
        """Start the card exporter."""
        listen = f"{self.address}:{EXPORTER_PORT}"
        cli = ("--card-cli", str(self.directory / "cards"), "--max-age", "0.1")
        arguments = ("--listen", listen, *cli, *self.exporter_security)
        self.exporter = Program(self.place(python_module("controlplane.exporters.card", *arguments)))
        return self.exporter

    def etcd_pid(self) -> int:
        """The process of the member that the service runs now; AssertionError when there is none."""
        children = Path(f"/proc/{self.running.pid}/task/{self.running.pid}/children").read_text().split()
        for child in map(int, children):
            with contextlib.suppress(OSError):
                if b"--initial-cluster-state" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        raise AssertionError(f"{self.name} has no etcd process")

    def kill_etcd(self) -> int:
        """SIGKILL the member; returns its pid."""
        pid = self.etcd_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def end(self) -> None:
        """Kill everything of this host, its etcd with it: what a test that is over has no use for."""
        for program in (self.exporter, self.service):
            if program is not None:
                program.kill()

    def stop(self) -> None:
        """End everything of this host well."""
        for program in (self.exporter, self.service):
            if program is not None:
                program.stop()


def cli_json(host: ClusterHost, *arguments: str, run: Callable[..., Outcome] = run_cli) -> dict[str, Any]:
    """Run clustercli against a host; its JSON answer. AssertionError when it fails.

    A test in which other threads or tasks write to stdout needs `run=run_program`.
    """
    outcome = run("--host", host.asked_at, "--output", "json", *arguments)
    assert outcome.returncode == 0, f"{arguments}: {outcome.stderr}\n{host.running.tail()}"
    return dict(json.loads(outcome.stdout))


def ask_cluster(host: ClusterHost) -> dict[str, Any]:
    """get_cluster's document, without a process of its own: for polls. Raises CallError."""
    answer = _call(host, "get_cluster", lambda stub: stub.GetCluster, cluster_pb2.GetClusterRequest())
    return render.cluster_document(answer)


def ask_cards(host: ClusterHost) -> dict[str, Any]:
    """cards' document, as `ask_cluster`."""
    request = cluster_pb2.ListCardsRequest()
    answer = _call(host, "cards", lambda stub: stub.ListCards, request, OperatorServiceStub)
    return render_cards.cards_document(answer)


def ask_events(host: ClusterHost) -> dict[str, Any]:
    """All events, as `ask_cluster`."""
    request = cluster_pb2.ListEventsRequest()
    answer = _call(host, "events", lambda stub: stub.ListEvents, request, OperatorServiceStub)
    return render_diagnosis.events_document(answer)


def ask_members(host: ClusterHost) -> dict[str, Any]:
    """get_members' document, as `ask_cluster`."""
    answer = _call(host, "get_members", lambda stub: stub.GetMembers, cluster_pb2.GetMembersRequest())
    return render.members_document(answer)


def _call(
    host: ClusterHost, action: str, method: Any, request: Any, service: Any = ClusterServiceStub
) -> Any:
    return call_cluster(Target(host.asked_at), 10.0, action, method, request, service)


def cards_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Cards of a get_cluster document by serial."""
    return {card["xdp_serial"]: card for host in document["hosts"] for card in host["cards"]}


@contextlib.contextmanager
def cluster_hosts(
    directory: Path, net: LoopbackNet, count: int, *, secure: bool = False, **settings: str
) -> Iterator[list[ClusterHost]]:
    """`count` started services that are in no cluster yet; host n has the card xdp<n>."""
    hosts = [
        ClusterHost(f"host-{n}", net.host(n), directory / f"host-{n}", secure=secure)
        for n in range(1, count + 1)
    ]
    try:
        for number, host in enumerate(hosts, start=1):
            host.set_cards(card(number))
            host.configure(**settings)
        _each(hosts, ClusterHost.start)
        yield hosts
    finally:
        for host in hosts:
            host.end()


def _each(hosts: list[ClusterHost], work: Callable[[ClusterHost], None]) -> None:
    """Do it to all hosts at once; raises what the first one raised."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(work, hosts))


def join_all(hosts: list[ClusterHost]) -> None:
    """Make one cluster of the hosts and wait until the expected voters are there."""
    cli_json(hosts[0], "create_cluster", "--name", "kv-cache")
    for host in hosts[1:]:
        token = ("--token", cli_json(hosts[0], "pki", "token")["token"]) if host.secure else ()
        cli_json(host, "add_node", "-n", hosts[0].api, *token)
    voters = len(hosts) if len(hosts) % 2 else len(hosts) - 1
    wait_voters(hosts[0], voters)


def wait_voters(host: ClusterHost, voters: int, seconds: float = 60.0) -> dict[str, Any]:
    """Until the cluster has this many voters and all members started; get_members' document."""

    def settled() -> dict[str, Any] | None:
        try:
            document = ask_members(host)
        except CallError:
            return None
        members = document["members"]
        right = sum(not member["learner"] for member in members) == voters
        return document if right and all(member["started"] for member in members) else None

    return wait_until(settled, f"{voters} voters", seconds, every=0.1)


def _fast_etcd(directory: Path) -> Path:
    """Runs etcd without fsync: no test loses power, and a slow disk must not decide elections."""
    wrapper = directory / "etcd-fast"
    wrapper.write_text(f'#!/bin/sh\nexec {find_etcd().path} --unsafe-no-fsync "$@"\n')
    wrapper.chmod(0o755)
    return wrapper
