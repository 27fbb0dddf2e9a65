"""Who gets a certificate: names, roles, tokens and their end, against a real etcd under TLS."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from akv.v1 import cluster_pb2

from controlplane.base import pki
from controlplane.base.addresses import HostPort
from controlplane.base.credentials import write_file
from controlplane.base.join_token import JoinToken, parse_join_token
from controlplane.base.pki import Identity, Role
from controlplane.base.request_errors import Denied, InvalidRequest, NotFound, RequestError, Unavailable
from controlplane.cluster.enrollment import EnrollServer, enroll
from controlplane.cluster.issuer import MAX_OPEN_TOKENS, Issuer
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.revocations import Revocations
from controlplane.cluster.settings import ClusterSettings, load_settings
from controlplane.cluster.trust import CA_KEY_FILE, Trust
from controlplane.model.cards import HostRecord
from controlplane.store.errors import StoreError
from controlplane.store.hosts import update_host
from controlplane.store.snapshot import read_snapshot
from tests.support.addresses import free_port
from tests.support.pki import TestAuthority
from tests.support.tls_etcd import HOST, TlsEtcd, run_tls_etcd


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.now = pki.utc_now()

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Signing:
    """A host that can sign, its clock and where it gives certificates."""

    issuer: Issuer
    trust: Trust
    clock: Clock
    settings: ClusterSettings
    link: EtcdLink

    async def token(self) -> JoinToken:
        return parse_join_token((await self.issuer.create_token(0)).token)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEtcd]:
    with run_tls_etcd(tmp_path_factory.mktemp("etcd")) as running:
        authority = running.authority.authority
        write_file(running.host_files.key.with_name(CA_KEY_FILE), pki.key_pem(authority.key), private=True)
        yield running


@pytest_asyncio.fixture
async def signing(etcd: TlsEtcd, tmp_path: Path) -> AsyncIterator[Signing]:
    address = str(urlsplit(etcd.client_url).hostname)
    environment = {"AWC_HOST": HOST, "AWC_ADDRESS": address, "AWC_PKI_DIR": str(etcd.host_files.key.parent)}
    settings = replace(load_settings(tmp_path, environment), enroll_port=free_port(address))
    clock = Clock()
    trust = Trust(settings)
    link = EtcdLink(settings.client_url, trust.etcd_credentials())
    await link.follow(Membership("member", HOST, settings.peer_url, "uuid", "kv-cache", ""))
    link.client.call_seconds = 15.0
    issuer = Issuer(settings, trust, link, clock)
    await issuer.secure_cluster(link.client)
    yield Signing(issuer, trust, clock, settings, link)
    await link.close()


@pytest_asyncio.fixture
async def served(signing: Signing) -> AsyncIterator[Signing]:
    """The same, with its listener for new hosts."""
    endpoint = HostPort(signing.settings.address, signing.settings.enroll_port)
    server = EnrollServer(endpoint, signing.trust, signing.issuer, nobody_looks)
    await server.start()
    yield signing
    await server.stop()


async def nobody_looks(_request: cluster_pb2.CheckPeerRequest) -> cluster_pb2.NewcomerReport:
    raise AssertionError("nobody asked for it")


def request_of(identity: Identity) -> tuple[pki.PrivateKey, str]:
    key = pki.new_key()
    return key, pki.make_request(key, identity).decode()


async def join(signing: Signing, token: JoinToken, host: str, address: str = "192.0.2.2") -> pki.Certificate:
    found = await enroll(signing.settings.address, token, host, address)
    return pki.load_certificate(found.certificate_pem)


async def test_a_gateway_gets_what_it_asked_for_and_no_more(signing: Signing) -> None:
    """The request itself claims to be an administrator: only its key counts."""
    key, request = request_of(Identity(Role.ADMIN, "eve"))
    answer = await signing.issuer.issue("gateway", "pod-1", request, 30)
    certificate = pki.load_certificate(answer.certificate_pem.encode())
    assert pki.identity_of(answer.certificate_pem.encode()) == Identity(Role.GATEWAY, "pod-1")
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(pki.load_certificate(answer.ca_pem.encode()))
    shown = await signing.issuer.overview()
    assert ("gateway", "pod-1", HOST) in {(c.role, c.name, c.issued_by) for c in shown.certificates}


async def test_a_name_has_one_role_for_ever(signing: Signing) -> None:
    """Else a gateway of a host's name would be etcd's administrator."""
    _, request = request_of(Identity(Role.GATEWAY, HOST))
    with pytest.raises(RequestError, match=f"the name {HOST} belongs to a certificate of role host"):
        await signing.issuer.issue("gateway", HOST, request, 0)
    await signing.issuer.issue("agent", "gpu-1", request, 0)
    await signing.issuer.issue("agent", "gpu-1", request, 0)
    with pytest.raises(RequestError, match="belongs to a certificate of role agent"):
        await signing.issuer.issue("gateway", "gpu-1", request, 0)


@pytest.mark.parametrize(
    ("role", "name", "words"),
    [
        ("host", "storage-9", "'host' is no role to issue"),
        ("root", "x", "'root' is no role"),
        ("", "x", "'' is no role"),
        ("gateway", "root", "can't be the name"),
        # Root at the socket stands in the records as this, and can't be revoked.
        ("admin", "local", "can't be the name"),
        ("gateway", "", "can't be the name"),
        ("gateway", "a/b", "can't be the name"),
    ],
)
async def test_what_nobody_gets(signing: Signing, role: str, name: str, words: str) -> None:
    _, request = request_of(Identity(Role.GATEWAY, "x"))
    with pytest.raises(InvalidRequest, match=words):
        await signing.issuer.issue(role, name, request, 0)


async def test_a_revoked_name_is_gone_for_good(signing: Signing, etcd: TlsEtcd) -> None:
    """Its connection to etcd ends to be of use at once, and no certificate is given for it again."""
    _, request = request_of(Identity(Role.GATEWAY, "pod-9"))
    await signing.issuer.issue("gateway", "pod-9", request, 0)
    revocations = Revocations(signing.link)
    async with etcd.client(etcd.authority.issue(Role.GATEWAY, "pod-9"), 15.0) as client:
        await read_snapshot(client)
        assert (await signing.issuer.revoke("pod-9")).role == "gateway"
        await signing.issuer.revoke("pod-9")
        with pytest.raises(StoreError):
            await read_snapshot(client)
    assert "pod-9" not in revocations
    await revocations.cycle()
    assert "pod-9" in revocations
    assert "pod-1" not in revocations
    for attempt in (
        signing.issuer.issue("gateway", "pod-9", request, 0),
        signing.issuer.renew(Identity(Role.GATEWAY, "pod-9"), request),
    ):
        with pytest.raises(RequestError, match="the name pod-9 was revoked: choose another"):
            await attempt
    with pytest.raises(StoreError):
        async with etcd.client(etcd.authority.issue(Role.GATEWAY, "pod-9"), 15.0) as client:
            await read_snapshot(client)


async def test_who_can_not_be_revoked(signing: Signing) -> None:
    await update_host(signing.link.client, HOST, lambda _: HostRecord(HOST, True, False, {}))
    with pytest.raises(InvalidRequest, match="is a host of the cluster: take it out by remove_node"):
        await signing.issuer.revoke(HOST)
    with pytest.raises(NotFound, match="nobody has a certificate of the name 'nobody'"):
        await signing.issuer.revoke("nobody")


async def test_a_host_that_was_taken_out_is_shut_out(served: Signing, etcd: TlsEtcd) -> None:
    """Its certificate was etcd's administrator; afterwards it reads nothing, and nobody gets its name."""
    await enroll(served.settings.address, await served.token(), "stolen", "192.0.2.7")
    await update_host(served.link.client, "stolen", lambda _: HostRecord("stolen", False, False, {}))
    revocations = Revocations(served.link)
    async with etcd.client(etcd.authority.issue(Role.HOST, "stolen"), 15.0) as client:
        await read_snapshot(client)
        assert (await served.issuer.revoke("stolen")).role == "host"
        with pytest.raises(StoreError):
            await read_snapshot(client)
    await revocations.cycle()
    assert "stolen" in revocations
    with pytest.raises(RequestError, match="the name stolen was revoked: choose another"):
        await join(served, await served.token(), "stolen")


async def test_renewal_is_of_what_the_caller_is(signing: Signing) -> None:
    _, request = request_of(Identity(Role.ADMIN, "eve"))
    answer = await signing.issuer.renew(Identity(Role.AGENT, "gpu-2"), request)
    assert pki.identity_of(answer.certificate_pem.encode()) == Identity(Role.AGENT, "gpu-2")
    with pytest.raises(InvalidRequest, match="renews its certificate by itself"):
        await signing.issuer.renew(Identity(Role.HOST, HOST), request)


async def test_a_token_brings_a_host_in_once(served: Signing) -> None:
    token = await served.token()
    found = await enroll(served.settings.address, token, "storage-2", "192.0.2.2")
    certificate = pki.load_certificate(found.certificate_pem)
    assert pki.identity_of(found.certificate_pem) == Identity(Role.HOST, "storage-2")
    assert pki.load_key(found.key_pem).public_key() == certificate.public_key()
    pki.load_authority(found.ca_pem, found.ca_key_pem, pki.utc_now())
    with pytest.raises(RequestError, match="good for one host only"):
        await join(served, token, "storage-3")


async def test_two_hosts_with_one_token_at_once(served: Signing) -> None:
    token = await served.token()
    outcomes = await asyncio.gather(
        join(served, token, "storage-4"), join(served, token, "storage-5"), return_exceptions=True
    )
    assert sum(isinstance(outcome, RequestError) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, pki.Certificate) for outcome in outcomes) == 1


async def test_an_expired_token_is_refused(served: Signing) -> None:
    token = await served.token()
    served.clock.now += timedelta(hours=25)
    secret = base64.b64encode(token.secret).decode()
    _, request = request_of(Identity(Role.HOST, "late"))
    with pytest.raises(Denied, match="has expired: make another"):
        await served.issuer.enroll(token.token_id, secret, "late", "192.0.2.2", request)
    assert token.token_id not in {shown.token_id for shown in (await served.issuer.overview()).tokens}


async def test_a_wrong_secret_costs_no_token(served: Signing) -> None:
    token = await served.token()
    with pytest.raises(RequestError, match="is not known"):
        await join(served, replace(token, secret=b"\0" * 32), "storage-6")
    with pytest.raises(RequestError, match="can't be the name"):
        await join(served, token, "root")
    assert await join(served, token, "storage-6")


async def test_the_secret_goes_to_the_right_cluster_only(served: Signing, tmp_path: Path) -> None:
    """A token of another CA ends the attempt before anything but the CA's certificate was asked for."""
    token = await served.token()
    other = pki.fingerprint(TestAuthority(tmp_path / "other").authority.certificate)
    with pytest.raises(RequestError, match=r"not of the cluster that made the token.*find out who answers"):
        await join(served, replace(token, ca_fingerprint=other), "storage-7")
    assert await join(served, token, "storage-7")


async def test_nobody_at_the_port_is_an_outage(signing: Signing) -> None:
    token = await signing.token()
    with pytest.raises(Unavailable, match=r"gives no certificates .*AWC_ENROLL_PORT"):
        await join(signing, token, "storage-8")


async def test_open_tokens_are_bounded_and_expired_ones_make_room(signing: Signing) -> None:
    present = len((await signing.issuer.overview()).tokens)
    for _ in range(MAX_OPEN_TOKENS - present):
        await signing.issuer.create_token(60)
    with pytest.raises(RequestError, match=f"{MAX_OPEN_TOKENS} join tokens are open"):
        await signing.issuer.create_token(60)
    signing.clock.now += timedelta(days=2)
    assert await signing.issuer.create_token(60)
    assert len((await signing.issuer.overview()).tokens) == 1
    for ttl in (59, 31 * 86400):
        with pytest.raises(InvalidRequest, match="choose 60 s"):
            await signing.issuer.create_token(ttl)
