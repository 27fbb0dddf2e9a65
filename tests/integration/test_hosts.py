"""The hosts of the tests themselves: who reaches whom, and that a killed run leaves nothing for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import HostNetwork, NetHost, host_network
from tests.support.procs import Program, python_environment, wait_until
from tests.support.scene.marks import NEEDS_HOSTS

pytestmark = list(NEEDS_HOSTS)

PORT, CONTROL_PORT = 4420, 2379
# Says who connected to whom, so that a one-way cut can't be taken for a refused connection.
_LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5).close()"
_OWNER = """
import sys, time
from tests.hosts import HostNetwork
from tests.support.procs import Program
network = HostNetwork().__enter__()
host = network.add("a")
print("namespace", host.namespace, flush=True)
program = Program(["ip", "netns", "exec", host.namespace, "sleep", "600"])
print("sleeper", program.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    with host_network() as made:
        yield made


def listen(host: NetHost, port: int) -> Program:
    program = Program(host.command([sys.executable, "-c", _LISTEN, host.address, str(port)]))
    program.wait_line("listening")
    return program


def reaches(source: NetHost, target: NetHost, port: int = PORT) -> bool:
    command = source.command([sys.executable, "-c", _CONNECT, target.address, str(port)])
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def wait_reaches(source: NetHost, target: NetHost, port: int = PORT) -> None:
    """Half a second may be too short on a busy machine; who is cut off is never reached."""
    wait_until(lambda: reaches(source, target, port), f"{source.name} reaches {target.name}")


def test_hosts_reach_each_other_until_they_are_cut(network: HostNetwork) -> None:
    a, b, c = (network.add(name) for name in "abc")
    with listen(b, PORT), listen(b, CONTROL_PORT), listen(c, PORT):
        wait_reaches(a, b)
        network.cut(a, b, control_only=True)
        wait_reaches(a, b)
        assert not reaches(a, b, CONTROL_PORT)
        network.cut(a, b)
        assert not reaches(a, b)
        wait_reaches(a, c)
        wait_reaches(c, b)
        network.heal()
        wait_reaches(a, b, CONTROL_PORT)
        network.cut_one_way(b, a)  # the way there is open, the answer is lost
        assert not reaches(a, b)
        network.heal()
        network.isolate(b)
        assert not reaches(c, b)


def test_the_machine_itself_does_not_reach_them(network: HostNetwork) -> None:
    host = network.add("a")
    with listen(host, PORT):
        command = [sys.executable, "-c", _CONNECT, host.address, str(PORT)]
        assert subprocess.run(command, capture_output=True, timeout=20, check=False).returncode != 0


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    owner = Program([sys.executable, "-c", _OWNER], env=python_environment())
    namespace = owner.wait_line("namespace ").split()[1]
    sleeper = int(owner.wait_line("sleeper ").split()[1])
    owner.kill()
    assert Path("/run/netns", namespace).exists()
    with host_network():
        assert not Path("/run/netns", namespace).exists()
        wait_until(lambda: not _runs(sleeper), "its process has ended")


def test_a_network_that_ends_leaves_no_process(network: HostNetwork) -> None:
    host = network.add("a")
    program = Program(host.command(["sh", "-c", "echo here; exec sleep 600"]))
    program.wait_line("here")
    network.close()
    assert program.wait_exit() == -9
    assert not Path("/run/netns", host.namespace).exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
