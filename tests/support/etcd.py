"""Real etcd members on loopback addresses, for tests and benches.

State is asked through etcd's own JSON gateway, so that a check does not depend on the client under test.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.cluster.etcd_binary import find_etcd
from tests.support.addresses import LoopbackNet
from tests.support.procs import PATIENCE, Program, wait_until

CLIENT_PORT = 2379
PEER_PORT = 2380
# A member that is asked for its state may be suspended: another is asked then.
STATUS_SECONDS = 2.0


@dataclass
class EtcdMember:
    """One member: its directory, its addresses and, while it runs, its process."""

    name: str
    host: str
    directory: Path
    flags: tuple[str, ...] = ()
    program: Program | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the client side."""
        return f"{self.host}:{CLIENT_PORT}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host}:{PEER_PORT}"

    @property
    def running(self) -> Program:
        assert self.program is not None, f"{self.name} was not started"
        return self.program

    def start(self, initial_cluster: str, state: str = "new", token: str = "test") -> None:
        """Start the process; returns at once."""
        url = f"http://{self.endpoint}"
        command: list[str | Path] = [find_etcd().path, "--name", self.name, "--data-dir", self.directory]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", initial_cluster, "--initial-cluster-state", state]
        # Tests never lose power, and a slow disk here must not cause elections in unrelated tests.
        command += ["--initial-cluster-token", token, "--unsafe-no-fsync", "--log-level", "warn", *self.flags]
        self.program = Program(command, name=self.name)

    def call(
        self, path: str, body: dict[str, Any] | None = None, seconds: float = PATIENCE
    ) -> dict[str, Any]:
        """POST to the JSON gateway, e.g. `maintenance/status`. Raises OSError when it does not answer."""
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{path}", data=json.dumps(body or {}).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return dict(json.load(answer))

    def status(self) -> dict[str, Any] | None:
        """Its status, or None when it does not answer."""
        try:
            return self.call("maintenance/status", seconds=STATUS_SECONDS)
        except (OSError, ValueError):
            return None

    def has_leader(self) -> bool:
        status = self.status()
        return status is not None and int(status.get("leader", "0")) != 0


@dataclass
class EtcdCluster:
    """A cluster of members, started together."""

    members: list[EtcdMember]

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    @property
    def initial_cluster(self) -> str:
        return ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Until every member knows a leader."""
        for member in self.members:
            wait_until(member.has_leader, f"{member.name} has a leader", seconds)

    def leader(self) -> EtcdMember:
        """The member that leads now, by asking the members that answer."""
        return wait_until(self._find_leader, "a leader among the members that answer")

    def follower(self) -> EtcdMember:
        """Some member that does not lead."""
        leader = self.leader()
        return next(member for member in self.members if member is not leader)

    def restart(self, member: EtcdMember) -> None:
        """Start a killed member again with its data."""
        member.start(self.initial_cluster)
        wait_until(member.has_leader, f"{member.name} is back", 60.0)

    def stop(self) -> None:
        """End every member and remove its data."""
        for member in self.members:
            if member.program is not None:
                member.program.resume()
                member.program.kill()
            shutil.rmtree(member.directory, ignore_errors=True)

    def _find_leader(self) -> EtcdMember | None:
        for member in self.members:
            status = member.status()
            if status is not None and status["header"]["member_id"] == status.get("leader"):
                return member
        return None

    def wipe(self) -> None:
        """Delete every key (leases and the revision stay)."""
        every = base64.b64encode(b"\0").decode()
        self.members[0].call("kv/deleterange", {"key": every, "range_end": every})


@contextlib.contextmanager
def run_etcd(
    directory: Path, size: int = 1, net: LoopbackNet | None = None, flags: tuple[str, ...] = ()
) -> Iterator[EtcdCluster]:
    """A cluster of `size` members on hosts 1.. of `net`, ready to serve; always ended."""
    network = net or LoopbackNet.pick()
    names = [f"etcd-{number}" for number in range(1, size + 1)]
    members = [
        EtcdMember(name, network.host(number), directory / name, flags)
        for number, name in enumerate(names, start=1)
    ]
    cluster = EtcdCluster(members)
    try:
        for member in members:
            member.start(cluster.initial_cluster)
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
