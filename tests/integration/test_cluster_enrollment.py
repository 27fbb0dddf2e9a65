"""The listener for new hosts against those who send it anything else."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from akv.v1 import cluster_pb2

from controlplane.base.addresses import HostPort
from controlplane.base.pki import Role
from controlplane.base.request_errors import Denied
from controlplane.cluster import enrollment
from controlplane.cluster.enrollment import CA_PATH, ENROLL_PATH, LOOK_PATH, MAX_BYTES, EnrollServer
from controlplane.cluster.settings import load_settings
from controlplane.cluster.trust import Trust
from tests.support.addresses import LoopbackNet, free_port
from tests.support.pki import TestAuthority
from tests.support.waiting import eventually

SECONDS = 30.0


@dataclass
class Recording:
    """Stands for the issuer: takes note of what reaches it, and refuses it."""

    asked: list[dict[str, str]] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)

    async def enroll(self, **fields: str) -> tuple[str, str]:
        self.asked.append(fields)
        raise Denied("not known")

    async def prove(self, token_id: str, _secret: str) -> None:
        if token_id != "open":
            raise Denied("not known")

    async def look(self, request: cluster_pb2.CheckPeerRequest) -> cluster_pb2.NewcomerReport:
        self.looked_at += [request.host, *request.endpoints]
        return cluster_pb2.NewcomerReport(began=1.0, ended=2.0)


@dataclass
class Listening:
    """The listener, its place and who is behind it."""

    url: str
    endpoint: HostPort
    issuer: Recording


@pytest_asyncio.fixture
async def listening(tmp_path: Path, loopback_net: LoopbackNet) -> AsyncIterator[Listening]:
    address = loopback_net.host(1)
    files = TestAuthority(tmp_path).issue(Role.HOST, "storage-1", addresses=[address])
    environment = {
        "AWC_HOST": "storage-1", "AWC_ADDRESS": address, "AWC_PKI_DIR": str(files.ca.parent),
    }  # fmt: skip
    endpoint, issuer = HostPort(address, free_port(address)), Recording()
    trust = Trust(load_settings(tmp_path, environment))
    server = EnrollServer(endpoint, trust, issuer, issuer.look)  # type: ignore[arg-type]
    await server.start()
    yield Listening(endpoint.url("https"), endpoint, issuer)
    await server.stop()


def unproven() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def post(listening: Listening, body: bytes, path: str = ENROLL_PATH) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(listening.url + path, data=body, ssl=unproven()) as answer,
    ):
        return answer.status, await answer.text("latin-1")


def body(**changes: Any) -> bytes:
    fields = {"token_id": "t", "secret": "c2VjcmV0", "host": "h", "address": "192.0.2.1", "request_pem": "p"}
    return json.dumps(fields | changes).encode()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "not an object with the texts token_id, secret"),
        (body(host=7), "not an object with the texts"),
        (body(secret=None), "not an object with the texts"),
        (body(request_pem="\ud800"), "not an object with the texts"),
        (b"[" * 8000, "not JSON"),
    ],
)
async def test_what_is_no_request_reaches_nobody(listening: Listening, sent: bytes, words: str) -> None:
    code, text = await post(listening, sent)
    assert code == 400
    assert words in json.loads(text)["error"]
    assert listening.issuer.asked == []


async def test_a_request_that_is_too_long_is_cut_off(listening: Listening) -> None:
    code, _ = await post(listening, b"x" * (MAX_BYTES + 1))
    assert code == 413
    assert listening.issuer.asked == []


async def test_a_refusal_comes_with_its_sentence_and_more_fields_are_not_heard(listening: Listening) -> None:
    code, text = await post(listening, body(role="admin"))
    assert (code, json.loads(text)) == (403, {"error": "not known"})
    assert set(listening.issuer.asked[0]) == {"token_id", "secret", "host", "address", "request_pem"}


async def test_only_who_has_a_token_is_looked_at(listening: Listening) -> None:
    wanted = {"token_id": "t", "secret": "s", "host": "h", "endpoints": "192.0.2.1:5000,192.0.2.1:2379"}
    code, text = await post(listening, json.dumps(wanted).encode(), LOOK_PATH)
    assert (code, json.loads(text)) == (403, {"error": "not known"})
    code, text = await post(listening, json.dumps(wanted | {"endpoints": []}).encode(), LOOK_PATH)
    assert code == 400
    assert listening.issuer.looked_at == []
    code, text = await post(listening, json.dumps(wanted | {"token_id": "open"}).encode(), LOOK_PATH)
    assert code == 200
    assert cluster_pb2.NewcomerReport.FromString(text.encode("latin-1")).ended == 2.0
    assert listening.issuer.looked_at == ["h", "192.0.2.1:5000", "192.0.2.1:2379"]


async def test_refusals_are_recorded_once_a_minute_for_each_kind(
    listening: Listening, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever names a stranger gives, and however often, it does not fill the log."""
    for number in range(20):
        assert (await post(listening, body(host=f"host-{number}", token_id=str(number))))[0] == 403
        assert (await post(listening, b"no JSON"))[0] == 400
        assert (await post(listening, body(endpoints=""), LOOK_PATH))[0] == 403
    told = [line for line in capfd.readouterr().out.splitlines() if "audit" in line]
    assert len(told) == 3, told
    assert "token, as host host-0" in told[0]


async def test_connections_beyond_the_bound_are_closed_at_once(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that never say a word of TLS; once they are given up there is room again."""
    monkeypatch.setattr(enrollment, "MAX_CONNECTIONS", 4)
    refused: list[object] = []

    class HangUp(enrollment._HangUp):
        def __init__(self) -> None:
            refused.append(self)

    monkeypatch.setattr(enrollment, "_HangUp", HangUp)
    place = (listening.endpoint.host, listening.endpoint.port)
    async with asyncio.timeout(SECONDS):
        silent = await asyncio.gather(*(asyncio.open_connection(*place) for _ in range(12)))
        await eventually(lambda: len(refused) == 8, "eight of twelve are refused")
        monkeypatch.setattr(enrollment, "HANDSHAKE_SECONDS", 0.0)
        code, _ = await post(listening, body())
        assert code == 403
    for _, writer in silent:
        writer.close()


async def test_connections_are_bounded_in_number_and_in_time(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent ones are ended, also while more than the listener takes come at once."""
    monkeypatch.setattr(enrollment, "CONNECTION_SECONDS", 0.5)
    monkeypatch.setattr(enrollment, "MAX_CONNECTIONS", 4)
    place = (listening.endpoint.host, listening.endpoint.port)
    async with asyncio.timeout(SECONDS):
        opened = await asyncio.gather(
            *(asyncio.open_connection(*place, ssl=unproven()) for _ in range(12)), return_exceptions=True
        )
        for connection in opened:
            if not isinstance(connection, BaseException):
                assert await connection[0].read() == b""
                connection[1].close()
    monkeypatch.undo()
    code, _ = await post(listening, body())
    assert code == 403


async def test_the_certificate_of_the_ca_is_given_to_anyone(listening: Listening, tmp_path: Path) -> None:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as session,
        session.get(listening.url + CA_PATH, ssl=unproven()) as answer,
    ):
        text = await answer.text()
    assert text.encode() == (tmp_path / "host-storage-1" / "ca.pem").read_bytes()
