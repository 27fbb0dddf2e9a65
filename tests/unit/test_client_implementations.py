"""Which implementation a client has, and what only the native one could get wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from integration.client import AsyncClient, Client, Got, Status, connect
from integration.client.operations import Exists, MatchPrefix
from integration.client.transfers import Get
from tests.support.gateway import GET, PUT, Limits, ReferenceGateway
from tests.support.procs import ROOT, wait_until

KEYS = [bytes([i]) * 32 for i in range(64)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


@pytest.fixture
def gateway(path: Path) -> Iterator[ReferenceGateway]:
    with ReferenceGateway(path, limits=Limits(credits=2)) as running:
        yield running


@pytest.fixture
def client(gateway: ReferenceGateway, path: Path) -> Iterator[Client]:
    with connect(socket=str(path), implementation="native") as connected:
        yield connected


async def test_the_argument_counts_then_the_environment_then_what_is_there(
    gateway: ReferenceGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(**argument: str) -> str:
        with connect(socket=str(path), **argument) as client:  # type: ignore[arg-type]
            return client.implementation

    monkeypatch.delenv("AKV_CLIENT_IMPLEMENTATION", raising=False)
    assert made() == "native"
    monkeypatch.setenv("AKV_CLIENT_IMPLEMENTATION", "python")
    assert made() == "python"
    assert made(implementation="native") == "native"
    async with await AsyncClient.connect(socket=str(path)) as client:
        assert client.implementation == "python"
    with pytest.raises(ValueError, match="'rust'"):
        made(implementation="rust")
    monkeypatch.setenv("AKV_CLIENT_IMPLEMENTATION", "c")
    with pytest.raises(ValueError, match="'c'"):
        made()


def test_without_the_module_the_python_client_serves_and_the_native_one_is_refused() -> None:
    # -S: no site-packages, so no native module.
    program = """
from integration.client import connect
print(connect(socket="/nowhere", wait=0.01).implementation)
connect(socket="/nowhere", implementation="native")
"""
    finished = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.stdout == "python\n"
    assert "ModuleNotFoundError" in finished.stderr


class _InterruptedError(Exception):
    pass


def test_a_signal_ends_a_wait_and_the_block_stays_the_gateways(
    gateway: ReferenceGateway, client: Client
) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _InterruptedError

    [block] = client.alloc(1, 4096)
    gateway.faults.withheld.add(GET)
    former = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(_InterruptedError):
            client.get(KEYS[:1], [block], 1, timeout=60)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, former)
    assert block.busy
    gateway.faults.let_go.set()
    wait_until(lambda: not block.busy, "the late reply")


def test_threads_share_a_session_with_few_credits(gateway: ReferenceGateway, client: Client) -> None:
    """Calls that find no credit wait in the reference client; both kinds go on until all are answered."""
    blocks = client.alloc(64, 4096)
    wrong: list[object] = []

    def work(number: int) -> None:
        mine, keys = blocks[8 * number : 8 * number + 8], KEYS[8 * number : 8 * number + 8]
        for turn in range(30):
            for block in mine:
                block.view[:] = bytes([turn]) * 4096
            answers: list[object] = [
                client.put(keys, mine, 1),
                client.get(keys, mine, 1),
                client.exists(keys, 1),
            ]
            good = [[Status.OK] * 8, [Got(Status.OK, 4096)] * 8, [True] * 8]
            if answers != good or any(bytes(block.view) != bytes([turn]) * 4096 for block in mine):
                wrong.append(answers)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.counters == {"sessions": 1}
    assert sum(gateway.batches(PUT)) == 8 * 8 * 30


def test_what_is_not_plain_goes_the_other_way_with_the_same_blocks(client: Client) -> None:
    first, second = client.alloc(2, 4096)
    for bad in ([first, first], [first, b"read only"], [first, object()]):
        with pytest.raises((TypeError, ValueError)):
            client.get(KEYS[:2], bad, 1)  # type: ignore[arg-type]
    assert not first.busy, "a call that was never sent holds nothing"
    client.free([second])
    assert client.put(KEYS[:2], [first, second], 1) == [Status.OK, Status.NOT_STORED]
    assert client.put([b"any name", "é".encode()], [first, bytearray(5)], 1) == [Status.OK] * 2
    assert client.exists([b"any name", KEYS[0], b"\0"], 1) == [True, True, False]
    assert client.match_prefix(iter([KEYS[0]]), 1) == 1  # type: ignore[arg-type]
    assert client.match_prefix([], 1) == 0
    assert client.get([], [], 1) == []


async def test_arguments_may_be_given_by_name(gateway: ReferenceGateway, client: Client, path: Path) -> None:
    """Also to the hot calls, whose arguments go two ways."""
    blocks = client.alloc(2, 4096)
    assert client.put(keys=KEYS[:2], data=blocks, dialog=1) == [Status.OK] * 2
    assert client.get(into=blocks, keys=KEYS[:2], dialog=1) == [Got(Status.OK, 4096)] * 2
    assert client._hot(Exists, None, dialog=1, keys=KEYS[:3]) == [True, True, False]
    assert client._hot(Get, None, KEYS[:1], dialog=1, into=blocks[:1]) == [Got(Status.OK, 4096)]
    async with await AsyncClient.connect(socket=str(path), implementation="native") as other:
        assert await other._hot(MatchPrefix, None, dialog=1, keys=KEYS[:3]) == 2
