"""`akv pod`: a program finds a working gateway, and its exit code is handed on."""

import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from integration.client import connect
with connect(socket=os.environ["AKV_GATEWAY_SOCKET"], strict=True) as client:
    print("gets", client.stats()["gets"])
sys.exit(7)
"""


def _pod(*program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controlplane.apps.akv", "pod", *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_the_program_talks_to_the_gateway_and_its_exit_code_is_the_pods() -> None:
    done = _pod(sys.executable, "-c", _PROGRAM)
    assert (done.returncode, "gets 0" in done.stdout) == (7, True), done.stderr


def test_a_program_that_does_not_exist_is_refused_before_anything_starts() -> None:
    done = _pod("no-such-program")
    assert done.returncode == 2
    assert "no program 'no-such-program'" in done.stderr
    assert "storage hosts" not in done.stdout
