"""clustercli against nothing, and against a service that does not answer: exit code 3 and one sentence."""

from __future__ import annotations

import socket
import time

from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli, run_program

# What a call that reads may take unless --timeout says otherwise.
DEFAULT_SECONDS = 10.0


def test_no_service_at_the_address(loopback_net: LoopbackNet) -> None:
    outcome = run_program("--host", f"{loopback_net.host(1)}:5000", "get_cluster")
    assert outcome.returncode == 3
    assert "no cluster service answers" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_a_service_that_hangs_costs_the_timeout_only(loopback_net: LoopbackNet) -> None:
    with socket.create_server((loopback_net.host(1), 0)) as server:
        target = f"{loopback_net.host(1)}:{server.getsockname()[1]}"
        began = time.monotonic()
        outcome = run_cli("--host", target, "--timeout", "0.5", "get_members")
        assert time.monotonic() - began < DEFAULT_SECONDS - 1
    assert outcome.returncode == 3
    assert "--timeout" in outcome.stderr


def test_help_and_version() -> None:
    outcome = run_program("--help")
    assert outcome.returncode == 0
    for word in ("create_cluster", "add_node", "remove_node", "get_cluster", "get_members", "Exit codes"):
        assert word in outcome.stdout
    assert run_program("--version").stdout.startswith("clustercli ")
