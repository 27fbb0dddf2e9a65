"""clustercli against nothing, and against a service that does not answer: exit code 3 and one sentence."""

from __future__ import annotations

import socket

from tests.support.addresses import LoopbackNet
from tests.support.cli import run_program


def test_no_service_at_the_address(loopback_net: LoopbackNet) -> None:
    outcome = run_program("--host", f"{loopback_net.host(1)}:5000", "get_cluster")
    assert outcome.returncode == 3
    assert "no cluster service answers" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_a_service_that_hangs_costs_the_timeout_only(loopback_net: LoopbackNet) -> None:
    with socket.create_server((loopback_net.host(1), 0)) as server:
        target = f"{loopback_net.host(1)}:{server.getsockname()[1]}"
        outcome = run_program("--host", target, "--timeout", "0.5", "get_members", seconds=10)
    assert outcome.returncode == 3
    assert "--timeout" in outcome.stderr


def test_help_and_version() -> None:
    outcome = run_program("--help")
    assert outcome.returncode == 0
    for word in ("create_cluster", "add_node", "remove_node", "get_cluster", "get_members", "Exit codes"):
        assert word in outcome.stdout
    assert run_program("--version").stdout.startswith("clustercli ")
