"""The client against the byte-exact examples that the gateway is tested with too."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from integration.client.config import ClientConfig
from integration.client.errors import ProtocolError, RequestRefusedError
from integration.client.handshake import Handshake, Welcome, session_mac
from integration.client.keys import default_affinity, dialog_id
from integration.client.loans import Borrow, Return
from integration.client.memory import Block, Lease
from integration.client.operations import (
    Alloc,
    Delete,
    Exists,
    Free,
    MatchPrefix,
    Operation,
    SessionView,
    Stats,
)
from integration.client.regions import Region, Register, Unregister
from integration.client.session import Call, Credits, Session
from integration.client.transfers import Get, Got, Put
from integration.client.wire import Frame, FrameReader, Status

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
PROTOCOL = json.loads((VECTORS / "protocol.json").read_text())
ROUTING = json.loads((VECTORS / "routing.json").read_text())


def _steps(conversation: str) -> dict[str, dict[str, str]]:
    found = next(c for c in PROTOCOL["conversations"] if c["name"] == conversation)
    return {step["name"]: step for step in found["steps"]}


def _frame(data: bytes) -> Frame:
    reader = FrameReader()
    reader.buffer()[: len(data)] = data
    [frame] = reader.received(len(data))
    return frame


def _welcome(step: dict[str, str]) -> Welcome:
    sent = bytes.fromhex(step["send"])[32:]
    _, _, features, arena, nonce = struct.unpack_from("<HHIQ32s", sent)
    config = ClientConfig(
        socket="/x" if features else None,
        arena_bytes=arena,
        regions=bool(features & 2),
        borrow=bool(features & 4),
    )
    handshake = Handshake(config, nonce)
    assert handshake.hello()[32:] == sent
    welcome = handshake.receive(*_frame(bytes.fromhex(step["expect"])))
    assert welcome is not None
    return welcome


class _Arena:
    """Blocks of any offset: the examples have no memory behind them."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def block(self, offset: int, length: int) -> Block:
        return Block(memoryview(bytearray(length)), offset, self._lease)

    def forget(self, block: Block) -> bool:
        block.drop()
        return True


def _view(step: dict[str, str]) -> SessionView:
    welcome, lease = _welcome(step), Lease(None)
    arena: Any = _Arena(lease) if welcome.arena_bytes else None
    # As large as the example says, and zero.
    cache = memoryview(bytes(welcome.cache_bytes)) if welcome.cache_bytes else None
    return SessionView(welcome, lease, arena, cache)


def _run(view: SessionView, step: dict[str, str], operation: Operation[Any]) -> tuple[Any, Exception | None]:
    """Result and error of the operation, after its frame was compared and the example's reply taken."""
    sent: list[bytes] = []
    credits = Credits(view.welcome.credits, view.welcome.max_entries)
    session = Session(view, lambda frame, _: sent.append(frame), credits)
    call = Call(operation, lambda: None, 0.0)
    session.start(call)
    [frame] = sent
    expected, reply = bytes.fromhex(step["send"]), bytearray.fromhex(step["expect"])
    assert frame[:16] + frame[24:] == expected[:16] + expected[24:], "all but the request id"
    reply[16:24] = frame[16:24]
    session.receive(_frame(bytes(reply)))
    assert call.finished
    return operation.result(), call.error


def _keys(step: dict[str, str], entry: int) -> list[bytes]:
    """The keys in a request whose entries have `entry` bytes and begin with the key."""
    frame = bytes.fromhex(step["send"])
    count = struct.unpack_from("<I", frame, 12)[0]
    return [frame[32 + i * entry : 64 + i * entry] for i in range(count)]


def test_shared_memory() -> None:
    steps = _steps("shared memory")
    view = _view(steps["hello"])
    # The example leases 4,096 and 100 bytes in one request; a call leases blocks of one size.
    offsets = struct.unpack("<2Q", bytes.fromhex(steps["alloc"]["expect"])[32:])
    assert view.arena is not None
    blocks = [view.arena.block(offset, length) for offset, length in zip(offsets, (4096, 100), strict=True)]
    refused, error = _run(view, steps["alloc more than there is"], Alloc(1, 0x2000))
    assert refused == []
    assert isinstance(error, RequestRefusedError)
    keys = _keys(steps["put"], 48)
    assert _run(view, steps["put"], Put(keys, blocks, 77))[0] == [Status.OK, Status.OK]
    got = _run(view, steps["get"], Get(_keys(steps["get"], 48), blocks, 77))[0]
    assert got == [Got(Status.OK, 4096), Got(Status.OK, 100)]
    assert _run(view, steps["free"], Free(blocks)) == (None, None)


def test_regions() -> None:
    steps = _steps("regions")
    view = _view(steps["hello"])
    assert (view.welcome.max_regions, view.welcome.max_region_bytes) == (16, 64 << 30)
    with open(os.memfd_create("vector"), "wb") as file:
        file.truncate(0x5000)
        region = Region(file.fileno(), 0x1000, None)
    assert _run(view, steps["register"], Register(region)) == (None, None)
    put = [region.block(1, 4096), region.block(0x3FFF, 1)]
    assert _run(view, steps["put"], Put(_keys(steps["put"], 48), put, 77))[0] == [Status.OK, Status.OK]
    for block in put:
        block.drop()
    into = [region.block(0x1001, 8192), region.block(0x3FFE, 2)]
    got = _run(view, steps["get"], Get(_keys(steps["get"], 48), into, 77))[0]
    assert got == [Got(Status.OK, 4096), Got(Status.OK, 1)]
    assert _run(view, steps["unregister"], Unregister(region)) == (True, None)


def test_borrowing() -> None:
    steps = _steps("borrowing")
    view = _view(steps["hello"])
    assert (view.welcome.max_regions, view.welcome.max_region_bytes) == (16, 64 << 30)
    assert (view.welcome.cache_bytes, view.welcome.max_borrowed) == (256 << 10, 16_384)
    loan, error = _run(view, steps["borrow"], Borrow(_keys(steps["borrow"], 32), 77))
    assert (loan.views, error) == ([bytes(100), None], None)
    assert _run(view, steps["return"], Return(loan)) == (True, None)
    proven, refused = _run(view, steps["return again"], Return(loan))
    assert not proven
    assert isinstance(refused, RequestRefusedError)


def test_a_late_card() -> None:
    """A GET is told LATE: a miss whose block is the gateway's until RELEASED comes."""
    steps = _steps("a late card")
    view = _view(steps["hello"])
    with open(os.memfd_create("vector"), "wb") as file:
        file.truncate(4096)
        region = Region(file.fileno(), 0, None)
    assert _run(view, steps["register"], Register(region)) == (None, None)
    [key], block = _keys(steps["put"], 48), region.block(0, 100)
    assert _run(view, steps["put"], Put([key], [block], 77))[0] == [Status.OK]
    session = Session(view, lambda frame, _: None, Credits(view.welcome.credits, view.welcome.max_entries))
    get = Get([key], [block], 77)
    session.start(Call(get, lambda: None, 0.0))
    for name in ("get", "released"):
        assert block.busy, name
        answer = bytearray.fromhex(steps[name]["expect"])
        answer[16:24] = (1).to_bytes(8, "little")  # the request's id here
        session.receive(_frame(bytes(answer)))
        assert get.result() == [Got(Status.MISS, 0)]
    assert not block.busy
    assert _run(view, steps["get again"], Get([key], [block], 77))[0] == [Got(Status.OK, 100)]


def test_stats_and_the_end_of_a_broken_stream() -> None:
    sent: list[bytes] = []
    view = _view(_steps("a broken stream")["hello"])
    session = Session(view, lambda frame, _: sent.append(frame), Credits(32, 4096))
    call = Call(Stats(), lambda: None, 0.0)
    session.start(call)
    expected = bytes.fromhex(PROTOCOL["stats"])
    assert sent[0][:16] + sent[0][24:] == expected[:16] + expected[24:], "all but the request id"
    with pytest.raises(ProtocolError, match="does not begin with the magic 0x31564b41"):
        session.receive(_frame(bytes.fromhex(_steps("a broken stream")["no magic"]["expect"])))


def test_inline() -> None:
    steps = _steps("inline")
    view = _view(steps["hello"])
    put = bytes.fromhex(steps["put"]["send"])
    lengths = [struct.unpack_from("<I", put, 32 + i * 48 + 40)[0] for i in range(2)]
    payloads = [put[128 : 128 + lengths[0]], put[128 + lengths[0] :]]
    assert _run(view, steps["put"], Put(_keys(steps["put"], 48), payloads, 5))[0] == [Status.OK] * 2
    get = bytes.fromhex(steps["get"]["send"])
    into = [bytearray(struct.unpack_from("<I", get, 32 + i * 48 + 40)[0]) for i in range(3)]
    outcome = _run(view, steps["get"], Get(_keys(steps["get"], 48), into, 5))[0]
    found = [bytes(memory[: one.length]) for memory, one in zip(into, outcome, strict=True) if not one.status]
    assert sorted(found) == sorted(payloads)
    for name in ("exists", "exists after delete"):
        present = _run(view, steps[name], Exists(_keys(steps[name], 32), 5))[0]
        assert present == ([True, False, True] if name == "exists" else [False])
    assert _run(view, steps["longest prefix"], MatchPrefix(_keys(steps["longest prefix"], 32), 5))[0] == 1
    assert _run(view, steps["delete"], Delete(_keys(steps["delete"], 32), 5))[0] == [True, True]


@pytest.mark.parametrize("vector", PROTOCOL["macs"])
def test_proofs_of_the_secret(vector: dict[str, str]) -> None:
    secret, client, server = (
        bytes.fromhex(vector[name]) for name in ("secret", "client_nonce", "server_nonce")
    )
    mac = session_mac(vector["label"].encode(), secret, client, server, vector["namespace"].encode())
    assert mac.hex() == vector["mac"]


def test_dialogs_and_affinity_are_those_of_the_routing_vectors() -> None:
    for vector in ROUTING["dialog_ids"]:
        assert dialog_id([bytes.fromhex(vector["block_key"])], 512) == int(vector["dialog"], 16)
    for vector in ROUTING["affinity_index"]:
        assert default_affinity(vector["block_tokens"]) == vector["index"]
