"""Two ends of a gRPC connection under the cluster's CA: who is let in, and what the others are told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from controlplane.base import pki, tls
from controlplane.base.credentials import CredentialFiles
from controlplane.base.pki import Role
from tests.support.pki import TestAuthority

SECONDS = 60.0
WHO = "/test.Who/Are"
OWN_CONNECTION = [*tls.TLS_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


class WhoAreYou(grpc.GenericRpcHandler):
    """One method, which answers with the caller's identity."""

    def service(self, details: Any) -> Any:
        assert details.method == WHO
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        try:
            return str(tls.peer_identity(context)).encode()
        except tls.NoPeerError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise AssertionError("abort raises") from error


@dataclass
class Served:
    """A server with the credentials of host storage-1."""

    authority: TestAuthority
    files: CredentialFiles
    target: str
    socket: str


@asynccontextmanager
async def serving(files: CredentialFiles, socket: str | None = None) -> AsyncIterator[str]:
    """A server with these credentials, and with a Unix socket where one is named; its HOST:PORT."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((WhoAreYou(),))
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(files))
    if socket is not None:
        server.add_secure_port(socket, grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    authority = TestAuthority(tmp_path)
    files = authority.issue(Role.HOST, "storage-1")
    socket = f"unix:{tmp_path}/admin.sock"
    async with serving(files, socket) as target:
        yield Served(authority, files, target, socket)


async def ask(target: str, credentials: grpc.ChannelCredentials) -> str:
    async with grpc.aio.secure_channel(target, credentials, options=OWN_CONNECTION) as channel:
        who: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(WHO)
        return (await who(b"", timeout=SECONDS)).decode()


async def refusal(target: str, credentials: grpc.ChannelCredentials) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(target, credentials)
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("role", list(Role))
async def test_each_role_is_known_by_its_certificate(served: Served, role: Role) -> None:
    files = served.authority.issue(role, "someone")
    assert await ask(served.target, tls.channel_credentials(files.load())) == f"{role} someone"


async def test_the_socket_is_the_local_administrator(served: Served) -> None:
    local = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    assert await ask(served.socket, local) == "admin local"


async def test_without_a_certificate_there_is_no_connection(served: Served) -> None:
    only_ca = grpc.ssl_channel_credentials(served.authority.authority.certificate_pem)
    code, _ = await refusal(served.target, only_ca)
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_another_clusters_certificate_is_refused(served: Served, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path / "other").issue(Role.ADMIN, "eve").load()
    mixed = grpc.ssl_channel_credentials(
        served.authority.authority.certificate_pem, other.key_pem, other.certificate_pem
    )
    code, _ = await refusal(served.target, mixed)
    assert code is grpc.StatusCode.UNAVAILABLE
    code, words = await refusal(served.target, tls.channel_credentials(other))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in words


async def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    """The same CA, key and name twice: once valid, once expired an hour ago."""
    then = pki.utc_now() - timedelta(days=1, hours=1)
    authority = TestAuthority(tmp_path, pki.create_authority("test", "a-uuid", then))
    files = authority.issue(Role.HOST, "storage-1")
    async with serving(files) as target:
        valid = authority.issue(Role.ADMIN, "a")
        assert await ask(target, tls.channel_credentials(valid.load())) == "admin a"
        expired = authority.issue(Role.ADMIN, "a", now=then, days=1)
        code, _ = await refusal(target, tls.channel_credentials(expired.load(lambda: then)))
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_that_names_nobody_is_told_so(served: Served) -> None:
    """The chain is right, and only the alternative names say something: no common name."""
    key = pki.new_key()
    eve = pki.Identity(Role.ADMIN, "eve")
    pem = served.authority.odd(key.public_key(), eve, common_name=False)
    credentials = grpc.ssl_channel_credentials(
        served.authority.authority.certificate_pem, pki.key_pem(key), pem
    )
    code, words = await refusal(served.target, credentials)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "0 common names" in words


async def test_a_gateway_can_not_stand_in_for_a_host(tmp_path: Path) -> None:
    """Its certificate is of the right CA, but not a host's."""
    authority = TestAuthority(tmp_path)
    client = tls.channel_credentials(authority.issue(Role.ADMIN, "a").load())
    async with serving(authority.issue(Role.GATEWAY, "pod-1")) as target:
        code, words = await refusal(target, client)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "verif" in words.lower()


async def test_a_renewed_certificate_counts_without_a_restart(served: Served, tmp_path: Path) -> None:
    admin = tls.channel_credentials(served.authority.issue(Role.ADMIN, "a").load())
    assert await ask(served.target, admin) == "admin a"
    other = TestAuthority(tmp_path / "other")
    fresh = other.issue(Role.HOST, "storage-1")
    for new, old in (
        (fresh.ca, served.files.ca),
        (fresh.certificate, served.files.certificate),
        (fresh.key, served.files.key),
    ):
        os.replace(new, old)
    code, _ = await refusal(served.target, admin)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert await ask(served.target, tls.channel_credentials(other.issue(Role.ADMIN, "b").load())) == "admin b"


async def test_files_that_can_not_be_used_leave_the_last_good_ones(served: Served) -> None:
    admin = tls.channel_credentials(served.authority.issue(Role.ADMIN, "a").load())
    served.files.certificate.write_bytes(b"half a certif")
    assert await ask(served.target, admin) == "admin a"


async def test_a_client_goes_on_with_what_it_had_and_says_what_is_wrong(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replaced files count for the next connection; damaged ones, and an end that is near, are told once."""
    files = served.authority.issue(Role.GATEWAY, "pod-1")
    newest = tls.NewestCredentials(files)
    assert await ask(served.target, newest()) == "gateway pod-1"
    whole = files.certificate.read_bytes()
    files.certificate.write_bytes(whole[:100])
    for _ in range(2):
        assert await ask(served.target, newest()) == "gateway pod-1"
    assert capsys.readouterr().out.count("credentials not read") == 1
    files.certificate.write_bytes(whole)
    newest()
    assert "certificate ends soon" not in capsys.readouterr().out
    old = TestAuthority(
        served.authority.root, pki.create_authority("t", "u", pki.utc_now() - timedelta(days=2))
    )
    old.issue(Role.GATEWAY, "pod-1", now=pki.utc_now() - timedelta(hours=20), days=1)
    newest()
    newest()
    assert capsys.readouterr().out.count("certificate ends soon") == 1


async def test_a_client_without_files_reaches_nobody(served: Served, tmp_path: Path) -> None:
    newest = tls.NewestCredentials(CredentialFiles.in_directory(tmp_path / "none"))
    code, _ = await refusal(served.target, newest())
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_server_gets_a_certificate_only_when_there_is_a_new_one(served: Served) -> None:
    """gRPC crashed under many handshakes at once when each brought it one."""
    source = tls.CertificateSource(served.files)
    assert [source.renewed() for _ in range(3)] == [None] * 3
    key = served.files.key.read_bytes()
    os.replace(served.authority.issue(Role.HOST, "storage-2").key, served.files.key)
    assert source.renewed() is None  # not the key of the certificate: those before stay
    served.files.key.write_bytes(key)
    assert source.renewed() is not None
    assert source.renewed() is None


async def test_many_handshakes_at_once(served: Served) -> None:
    credentials = tls.channel_credentials(served.authority.issue(Role.ADMIN, "a").load())
    answers = await asyncio.gather(*(ask(served.target, credentials) for _ in range(100)))
    assert set(answers) == {"admin a"}


async def test_grpc_sees_no_certificate_that_it_does_not_require(tmp_path: Path) -> None:
    """The ground of decision 0011: else a caller without one could be told so by a status of its call."""
    authority = TestAuthority(tmp_path)
    host = authority.issue(Role.HOST, "storage-1").load()
    admin = authority.issue(Role.ADMIN, "op").load()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((WhoAreYou(),))
    optional = grpc.ssl_server_credentials([(host.key_pem, host.certificate_pem)], host.ca_pem, False)
    port = server.add_secure_port("127.0.0.1:0", optional)
    await server.start()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(f"127.0.0.1:{port}", tls.channel_credentials(admin))
    finally:
        await server.stop(0)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
