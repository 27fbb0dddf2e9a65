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


# How each program of a client that forks begins.
CONNECTED = """
import os, signal, sys, threading
from integration.client import ClientConfig, Status, client_class
client = client_class(None)(ClientConfig(socket=sys.argv[1]))
assert client.wait_connected(30)
"""

# In a process of its own: a fork of this one would take along the locks of every thread that other tests left
# behind (gRPC's among them), and could hang.
FORKING_CLIENT = """
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


# Forks while four threads wait for replies, of whom one reads the socket. An alarm ends a child that hangs.
FORKING_WAITING_CLIENT = """
ended = threading.Event()
def call():
    while not ended.is_set():
        client.exists([bytes(32)], 1)
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(500):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        assert client.exists([bytes(32)], 1) == [False]
        assert client.alloc(1, 1) == []
        assert not client.wait_connected(60)
        client.close()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
ended.set()
for thread in threads:
    thread.join()
assert client.counters == {"sessions": 1}, client.counters
client.close()
"""


# A signal's handler forks: within the client's lock, and within a call, which goes on in the child.
FORKING_HANDLER = """
children = []
def fork(number, frame):
    child = os.fork()
    children.append(child)
    if child == 0:
        signal.alarm(30)
    handled.set()
handled = threading.Event()
signal.signal(signal.SIGUSR1, fork)
with client._lock:
    signal.raise_signal(signal.SIGUSR1)
if children[-1] == 0:
    assert client.exists([bytes(32)], 1) == [False]
    os._exit(0)
def interrupt():
    for _ in range(20):
        handled.wait()
        handled.clear()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
thread = threading.Thread(target=interrupt)
thread.start()
while len(children) < 21:
    client.exists([bytes(32)], 1, timeout=1)
    if children[-1] == 0:
        os._exit(0)
thread.join()
for child in children:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
assert client.counters == {"sessions": 1}, client.counters
client.close()
"""


@pytest.mark.parametrize(
    "program",
    [FORKING_CLIENT, FORKING_BUSY_CLIENT, FORKING_WAITING_CLIENT, FORKING_HANDLER],
    ids=["idle", "busy", "waiting", "handler"],
)
def test_a_forked_child_touches_nothing_of_its_parents_session(
    gateway: Program, path: Path, program: str
) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", CONNECTED + program, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


# Meets a limit of descriptors, as another part of its process may have used them up for a while.
CROWDED_CLIENT = """
import os, resource, sys
from integration.client import ClientConfig, client_class
from tests.support.procs import wait_until
def crowd(left):
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    for _ in range(left):
        os.close(held.pop())
    return held
def relax(held):
    for descriptor in held:
        os.close(descriptor)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
settings = {"backoff_first": 0.01, "backoff_cap": 0.05, "arena_bytes": 0}
client = client_class(None)(ClientConfig(socket=sys.argv[1], **settings))
assert client.wait_connected(30)
pool = os.memfd_create("pool")
os.truncate(pool, 4096)
# The region's own two: what its frame is to carry may find none.
held = crowd(2)
region = client.register(pool)
relax(held)
wait_until(lambda: region.registered, "the region is registered")
assert client.wait_connected(30)
print('{"event": "registered"}', flush=True)
wait_until(lambda: not client.connected, "the session is lost")
# The socket of the next attempt and the gateway's pidfd.
held = crowd(2)
print('{"event": "crowded"}', flush=True)
wait_until(lambda: client.connected or "open files" in str(client.last_error), "the lack is met")
relax(held)
assert client.wait_connected(30), client.last_error
wait_until(lambda: region.registered, "the region is registered")
client.close()
print('{"event": "done"}', flush=True)
"""


def test_descriptors_that_are_used_up_for_a_while_cost_a_session_at_most(
    gateway: Program, path: Path
) -> None:
    with Program([sys.executable, "-c", CROWDED_CLIENT, str(path)], name="crowded") as program:
        program.wait_event("registered")
        gateway.kill()
        path.unlink()
        program.wait_event("crowded")
        with Program(python_module("tests.support.gateway", "--socket", str(path)), name="second") as second:
            second.wait_event("ready")
            program.wait_event("done")


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
