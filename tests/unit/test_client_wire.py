"""Frames and HELLO, byte by byte."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.client.config import ClientConfig
from integration.client.errors import AuthenticationError, ProtocolError, RequestRefusedError
from integration.client.handshake import Handshake, session_mac
from integration.client.wire import FrameReader, Header, WireError, encode_frame

SECRET = bytes(range(32))


def _feed(reader: FrameReader, data: bytes, step: int) -> list[tuple[Header, bytes]]:
    frames = []
    while data:
        room = reader.buffer()
        part, data = data[: min(step, len(room))], data[min(step, len(room)) :]
        room[: len(part)] = part
        frames += [(frame.header, bytes(frame.body)) for frame in reader.received(len(part))]
    return frames


def test_a_frame_has_the_bytes_of_the_document() -> None:
    frame = encode_frame(Header(5, 0, 2, 7, 9), b"body")
    assert (
        frame
        == bytes.fromhex("414b5631 04000000 0500 0000 02000000 0700000000000000 0900000000000000") + b"body"
    )


@given(
    sizes=st.lists(st.sampled_from([0, 1, 31, 32, 33, 4096, 65503, 65504, 65505, 200_000]), max_size=6),
    step=st.sampled_from([1 << 20, 65536, 4099, 977]),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(sizes: list[int], step: int) -> None:
    reader = FrameReader()
    reader.max_body = 1 << 20
    frames = [(Header(4, 0, i, i, 0), bytes([i % 256]) * size) for i, size in enumerate(sizes)]
    stream = b"".join(encode_frame(header, body) for header, body in frames)
    assert _feed(reader, stream, step) == frames


def test_a_broken_stream_is_told_apart() -> None:
    with pytest.raises(WireError, match="begins with"):
        _feed(FrameReader(), b"HTTP/1.1 400 Bad Request\r\n\r\n......", 100)
    with pytest.raises(WireError, match="above the limit of 4096"):
        _feed(FrameReader(), struct.pack("<IIHHIQQ", 0x31564B41, 4097, 1, 0, 0, 0, 0), 100)


def _welcome(**changes: int | bytes) -> memoryview:
    fields: dict[str, int | bytes] = {
        "version": 1,
        "reserved": 0,
        "features": 1,
        "arena": 1 << 20,
        "align": 4096,
        "batch": 4096,
        "credits": 16,
        "frame": 1 << 20,
        "value": 1 << 20,
        "entries": 5000,
        "session": 5,
        "mac": bytes(32),
    }
    return memoryview(struct.pack("<HHIQIIIIIIQ32s", *(fields | changes).values()))


def _reply(status: int = 0) -> Header:
    return Header(0x8001, status, 0, 0, 0)


def test_hello_has_the_bytes_of_the_document() -> None:
    config = ClientConfig(socket="/x", namespace="nämé", arena_bytes=4096)
    hello = Handshake(config, b"n" * 32).hello()
    body = struct.pack("<HHIQ", 1, 1, 7, 4096) + b"n" * 32 + bytes(32) + b"\x06\0" + "nämé".encode()
    assert hello == encode_frame(Header(1, 0, 0, 0, 0), body)


def test_the_welcome_is_read() -> None:
    welcome = Handshake(ClientConfig(socket="/x"), b"n" * 32).receive(_reply(), _welcome())
    assert welcome is not None
    assert (welcome.max_batch, welcome.credits, welcome.session_id) == (4096, 16, 5)
    assert welcome.max_entries == 5000


def test_a_gateway_that_tells_no_limit_of_entries_takes_what_it_always_took() -> None:
    welcome = Handshake(ClientConfig(socket="/x"), b"n" * 32).receive(_reply(), _welcome(entries=0))
    assert welcome is not None
    assert welcome.max_entries == 16_384


def test_both_sides_prove_the_secret() -> None:
    handshake = Handshake(ClientConfig(socket="/x", secret=SECRET, namespace="a"), b"c" * 32)
    assert handshake.receive(_reply(2), memoryview(b"s" * 32)) is None
    mac = session_mac(b"akv-hello-1", SECRET, b"c" * 32, b"s" * 32, b"a")
    assert handshake.hello()[32 + 48 : 32 + 80] == mac
    with pytest.raises(AuthenticationError, match="did not prove"):
        handshake.receive(_reply(), _welcome())
    proof = session_mac(b"akv-welcome-1", SECRET, b"c" * 32, b"s" * 32, b"a")
    assert handshake.receive(_reply(), _welcome(mac=proof)) is not None


def test_a_gateway_that_asks_for_no_proof_is_refused_by_a_client_with_a_secret() -> None:
    handshake = Handshake(ClientConfig(socket="/x", secret=SECRET), b"c" * 32)
    with pytest.raises(AuthenticationError, match="did not prove"):
        handshake.receive(_reply(), _welcome())


def test_refusals_say_why() -> None:
    plain = Handshake(ClientConfig(socket="/x"), b"c" * 32)
    with pytest.raises(AuthenticationError, match="has a secret at the gateway"):
        plain.receive(_reply(2), memoryview(b"s" * 32))
    with pytest.raises(AuthenticationError, match="wrong mac"):
        plain.receive(_reply(3), memoryview(b"wrong mac"))
    with pytest.raises(RequestRefusedError, match="SHUTTING_DOWN"):
        plain.receive(Header(0xFFFF, 8, 0, 0, 0), memoryview(b"going"))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"features": 3},
        {"align": 0},
        {"align": 4095},
        {"batch": 0},
        {"credits": 0},
        {"value": 0},
        {"entries": 4095},
        {"frame": 100},
        {"frame": (1 << 30) + 1},
        {"arena": 0},
        {"features": 0},
    ],
)
def test_a_welcome_that_can_not_be_is_a_protocol_error(changes: dict[str, int | bytes]) -> None:
    with pytest.raises(ProtocolError):
        Handshake(ClientConfig(socket="/x"), b"n" * 32).receive(_reply(), _welcome(**changes))


@given(opcode=st.integers(0, 0xFFFF), status=st.integers(0, 0xFFFF), body=st.binary(max_size=100))
def test_any_answer_to_hello_ends_in_a_session_or_a_client_error(
    opcode: int, status: int, body: bytes
) -> None:
    handshake = Handshake(ClientConfig(socket="/x", secret=SECRET), b"n" * 32)
    with contextlib.suppress(AuthenticationError, ProtocolError, RequestRefusedError):
        handshake.receive(Header(opcode, status, 0, 0, 0), memoryview(body))


@pytest.mark.parametrize(
    "settings",
    [
        {"namespace": ""},
        {"namespace": "x" * 129},
        {"namespace": "a\0b"},
        {"secret": b"short"},
        {"socket": None, "host": "gateway.example"},
        {"socket": None, "port": 0},
        {"host": "192.0.2.7"},
        {"arena_bytes": -1},
        {"timeout": 0},
        {"timeout": float("nan")},
    ],
)
def test_settings_that_can_not_be_right_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|give"):
        ClientConfig(**settings)  # type: ignore[arg-type]
