"""A gateway that is suspended in the middle of a transfer, or killed: whose memory is it?"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import Client, Got, Status, connect
from tests.support.procs import ROOT, Program, python_module, wait_until

pytestmark = pytest.mark.usefixtures("implementation")
KEYS = [bytes([i]) * 32 for i in range(4)]
LENGTH = 8192
# Well below the deadline of a call, and long enough for a busy machine.
NO_WAIT = 3.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


@pytest.fixture
def gateway(path: Path) -> Iterator[Program]:
    with Program(python_module("tests.support.gateway", "--socket", str(path)), name="gateway") as program:
        program.wait_event("ready")
        yield program


@pytest.fixture
def client(gateway: Program, path: Path) -> Iterator[Client]:
    with connect(socket=str(path), strict=False) as connected:
        yield connected


def test_a_get_in_a_suspended_gateway_keeps_its_block_until_it_resumes(
    gateway: Program, client: Client
) -> None:
    [source, late, other] = client.alloc(3, LENGTH)
    source.view[:] = b"a" * LENGTH
    assert client.put(KEYS[:1], [source], 1) == [Status.OK]
    gateway.suspend()
    late.view[:] = b"." * LENGTH
    assert client.get(KEYS[:1], [late], 1, timeout=0.2) == [Got(Status.MISS, 0)]
    assert late.busy
    started = time.monotonic()
    assert client.get(KEYS[:1], [other], 1) == [Got(Status.MISS, 0)]
    assert time.monotonic() - started < NO_WAIT, "nobody waits for a gateway that is known to be silent"
    assert bytes(late.view) == b"." * LENGTH
    gateway.resume()
    wait_until(lambda: not late.busy, "the late reply")
    assert bytes(late.view) == b"a" * LENGTH
    assert client.get(KEYS[:1], [other], 1) == [Got(Status.OK, LENGTH)]
    assert bytes(other.view) == b"a" * LENGTH


def test_a_put_in_a_suspended_gateway_pins_its_source(gateway: Program, client: Client) -> None:
    [source, other] = client.alloc(2, LENGTH)
    source.view[:] = b"b" * LENGTH
    gateway.suspend()
    assert client.put(KEYS[:1], [source], 1, timeout=0.2) == [Status.NOT_STORED]
    assert source.busy
    client.free([source])
    gateway.resume()
    wait_until(lambda: not source.busy, "the late reply")
    assert client.get(KEYS[:1], [other], 1) == [Got(Status.OK, LENGTH)]
    assert bytes(other.view) == b"b" * LENGTH


def test_blocks_in_transfer_of_a_closed_session_are_busy_until_the_process_is_gone(
    gateway: Program, path: Path
) -> None:
    with connect(socket=str(path), silence_limit=0.1, connect_timeout=0.2, backoff_first=0.01) as client:
        [block] = client.alloc(1, LENGTH)
        gateway.suspend()
        assert client.get(KEYS[:1], [block], 1, timeout=0.1) == [Got(Status.MISS, 0)]
        wait_until(lambda: client.counters.get("sessions_lost") == 1, "the session is given up")
        assert not block.valid
        assert block.busy, "a closed socket does not prove that the gateway will not write"
        gateway.kill()
        assert not block.busy


def test_a_killed_gateway_costs_misses_and_nothing_else(gateway: Program, path: Path, client: Client) -> None:
    gateway.kill()
    started = time.monotonic()
    assert client.put(KEYS[:1], [b"x"], 1) == [Status.NOT_STORED]
    assert time.monotonic() - started < NO_WAIT
    path.unlink()
    with Program(python_module("tests.support.gateway", "--socket", str(path)), name="second") as second:
        second.wait_event("ready")
        assert client.wait_connected(30)
        assert client.put(KEYS[:1], [b"x"], 1) == [Status.OK]
        assert client.stats()["pid"] == second.pid


# In a process of its own: a fork of this one would take along the locks of every thread that other tests left
# behind (gRPC's among them), and could hang.
FORKING_CLIENT = """
import os, sys
from integration.client import ClientConfig, Status, client_class
client = client_class(None)(ClientConfig(socket=sys.argv[1]))
assert client.wait_connected(30)
one, two = bytes(32), bytes(31) + b"2"
assert client.put([one], [b"x"], 1) == [Status.OK]
child = os.fork()
if child == 0:
    os._exit(0 if client.put([two], [b"y"], 1) == [Status.NOT_STORED] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.exists([one, two], 1) == [True, False]
client.close()
"""


# Forks while another thread is in the middle of calls.
FORKING_BUSY_CLIENT = """
import os, sys, threading
from integration.client import ClientConfig, Status, client_class
client = client_class(None)(ClientConfig(socket=sys.argv[1]))
assert client.wait_connected(30)
ended = threading.Event()
def call():
    while not ended.is_set():
        assert client.put([bytes(32)], [b"x"], 1) == [Status.OK]
thread = threading.Thread(target=call)
thread.start()
for _ in range(100):
    child = os.fork()
    if child == 0:
        os._exit(0 if client.put([bytes(32)], [b"y"], 1) == [Status.NOT_STORED] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ended.set()
thread.join()
client.close()
"""


@pytest.mark.parametrize("program", [FORKING_CLIENT, FORKING_BUSY_CLIENT], ids=["idle", "busy"])
def test_a_forked_child_touches_nothing_of_its_parents_session(
    gateway: Program, path: Path, program: str
) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


def test_the_client_imports_nothing_but_the_standard_library() -> None:
    # -S: no site-packages at all.
    finished = subprocess.run(
        [sys.executable, "-S", "-c", "import integration.client"],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
