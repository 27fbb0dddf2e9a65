"""Hosts as network namespaces: each with an address of its own, joined by a bridge that is nobody's.

A host's processes start in its namespace and end with this process. Addresses are of a random 127.x.y.0/24,
as in the other tests, so that nothing but the namespaces of one run can answer to them: inside a namespace
that network lies on its veth link instead of on loopback. Faults of the network are nftables sets of
addresses whose packets a host drops at its input.

What a killed run left behind is removed at the next start: the name of a namespace tells its owner's pid and
the time at which that process began.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane.cluster import child_guard
from tests.support.addresses import LoopbackNet
from tests.support.procs import wait_until

_COMMAND_SECONDS = 60.0
_PREFIX = "akvt"
_NAME = re.compile(rf"{_PREFIX}-(\d+)-(\d+)-.+")
_NEEDED = ("ip", "nft")
# Ports of the control path: the cluster API, etcd, exporters. What is cut there leaves the cards' ports open.
CONTROL_PORTS = (5000, 5001, 2379, 2380, 7891, 9090, 9427)
_FIREWALL = """
table inet akv {
  set cut { type ipv4_addr; }
  set cut_control { type ipv4_addr; }
  set cut_raft { type ipv4_addr; }
  chain input {
    type filter hook input priority 0; policy accept;
    ip saddr @cut drop
    ip saddr @cut_control tcp dport { %(ports)s } drop
    ip saddr @cut_control tcp sport { %(ports)s } drop
    ip saddr @cut_raft tcp dport 2380 drop
    ip saddr @cut_raft tcp sport 2380 drop
  }
}
"""


@functools.cache
def why_no_namespaces() -> str:
    """Why hosts can't be made here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in _NEEDED if not Path(_tool(name)).is_absolute()]
    if missing:
        return f"there is no {', '.join(missing)} on PATH (iproute2, nftables)"
    try:  # root of a container may lack what it takes
        _run("unshare", "--net", "--mount", "true")
    except (OSError, subprocess.SubprocessError) as error:
        return f"this root may make no namespaces: {error}"
    return ""


@dataclass(frozen=True)
class NetHost:
    """One host: its name, its address, and the namespace that its processes run in."""

    name: str
    address: str
    namespace: str

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` on this host and dies with this process.

        The kernel watches the thread that starts it: start hosts' programs from a thread that stays.
        """
        program = shutil.which(str(command[0])) or str(command[0])
        rest = [str(part) for part in command[1:]]
        guard = [sys.executable, "-I", "-S", str(child_guard.__file__), str(os.getpid())]
        return [*guard, _tool("ip"), "netns", "exec", self.namespace, program, *rest]


@dataclass
class HostNetwork:
    """The hosts of one run. A context manager that ends every process in them and removes them."""

    net: LoopbackNet = field(default_factory=LoopbackNet.pick)
    hosts: dict[str, NetHost] = field(default_factory=dict)

    def __enter__(self) -> Self:
        remove_leftovers()
        _run("ip", "netns", "add", self._hub)
        try:
            _in(self._hub, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            _in(self._hub, "link", "set", "br0", "up")
        except BaseException:  # __exit__ is not called for what fails here
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _hub(self) -> str:
        return self._namespace("hub")

    def add(self, name: str) -> NetHost:
        """A new host with the next address, connected to all others."""
        number = len(self.hosts) + 1
        host = NetHost(name, self.net.host(number), self._namespace(name))
        self.hosts[name] = host
        _run("ip", "netns", "add", host.namespace)
        link = f"veth{number}"
        _in(host.namespace, "link", "add", "eth0", "type", "veth", "peer", "name", link, "netns", self._hub)
        _in(self._hub, "link", "set", link, "master", "br0", "up")
        _in(host.namespace, "link", "set", "lo", "up")
        # 127.0.0.0/8 leaves loopback but for 127.0.0.1, and the kernel takes it from a link.
        localnet = "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet"
        _run("ip", "netns", "exec", host.namespace, "sh", "-c", localnet)
        _in(host.namespace, "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
        _in(host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0", "scope", "global")
        _in(host.namespace, "link", "set", "eth0", "up")
        ports = ", ".join(map(str, CONTROL_PORTS))
        _run("ip", "netns", "exec", host.namespace, "nft", _FIREWALL % {"ports": ports})
        return host

    def cut(self, one: NetHost, other: NetHost, *, control_only: bool = False) -> None:
        """Nothing passes between the two, or nothing of the control path."""
        self.cut_one_way(one, other, control_only=control_only)
        self.cut_one_way(other, one, control_only=control_only)

    def cut_one_way(self, source: NetHost, target: NetHost, *, control_only: bool = False) -> None:
        """What `source` sends does not reach `target`; the way back is open."""
        chosen = "cut_control" if control_only else "cut"
        _nft(target, "add", "element", "inet", "akv", chosen, "{", source.address, "}")

    def cut_raft(self, one: NetHost, other: NetHost) -> None:
        """Nothing passes between the etcd members of the two; their clients and all else go on."""
        for source, target in ((one, other), (other, one)):
            _nft(target, "add", "element", "inet", "akv", "cut_raft", "{", source.address, "}")

    def isolate(self, host: NetHost) -> None:
        """Cut the host off from every other one."""
        for other in self.hosts.values():
            if other is not host:
                self.cut(host, other)

    def heal(self) -> None:
        """Undo all cuts."""
        for host in self.hosts.values():
            for name in ("cut", "cut_control", "cut_raft"):
                _nft(host, "flush", "set", "inet", "akv", name)

    def close(self) -> None:
        """End what runs in the namespaces and remove them."""
        _remove([*(host.namespace for host in self.hosts.values()), self._hub])
        self.hosts.clear()

    def _namespace(self, name: str) -> str:
        return f"{_PREFIX}-{os.getpid()}-{_began(os.getpid())}-{self.net.second}.{self.net.third}-{name}"


def remove_leftovers() -> None:
    """Remove the namespaces of runs whose process is gone, with the processes in them."""
    _remove([name for name in _namespaces() if _owner_is_gone(name)])


@contextlib.contextmanager
def host_network() -> Iterator[HostNetwork]:
    """An empty network."""
    with HostNetwork() as network:
        yield network


def _owner_is_gone(namespace: str) -> bool:
    found = _NAME.fullmatch(namespace)
    return found is not None and _began(int(found[1])) != int(found[2])


def _began(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    except (OSError, IndexError):
        return 0


def _namespaces() -> list[str]:
    lines = _run("ip", "netns", "list").splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _remove(namespaces: list[str]) -> None:
    """Another run may remove the same leftovers at the same time: what is gone is well."""
    for namespace in set(namespaces) & set(_namespaces()):
        with contextlib.suppress(subprocess.CalledProcessError):
            wait_until(functools.partial(_ended, namespace), f"{namespace} has no process", 10.0)
            _run("ip", "netns", "delete", namespace)


def _ended(namespace: str) -> bool:
    """Kill what runs in the namespace; true when nothing does."""
    pids = [int(pid) for pid in _run("ip", "netns", "pids", namespace).split()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not pids


def _nft(host: NetHost, *words: str) -> None:
    _run("ip", "netns", "exec", host.namespace, "nft", *words)


def _in(namespace: str, *words: str) -> None:
    _run("ip", "-n", namespace, *words)


def _run(program: str, *words: str) -> str:
    command = [_tool(program), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        error.add_note(done.stderr.strip())
        raise error
    return done.stdout


def _tool(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return found or program
