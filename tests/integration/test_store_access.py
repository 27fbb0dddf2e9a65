"""etcd under TLS: certificates are asked for, names are users, and a gateway can write no key."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from akv.etcd import etcd_pb2 as pb
from cryptography import x509

from controlplane.base.credentials import CredentialFiles, write_file
from controlplane.base.pki import Role, issue, load_key, to_pem, utc_now
from controlplane.store import kv, pki_records
from controlplane.store.access import (
    GATEWAY_ROLE,
    ROOT_ROLE,
    add_user,
    enable_access_control,
    remove_user,
)
from controlplane.store.client import EtcdClient
from controlplane.store.errors import Refusal, RequestRefused, StoreError, StoreUnavailable
from controlplane.store.lease import Lease
from controlplane.store.membership import (
    Alarm,
    add_learner,
    compact,
    defragment,
    disarm,
    list_members,
    member_status,
)
from controlplane.store.pki_records import NameRecord, TokenRecord, hash_of
from controlplane.store.snapshot import read_snapshot
from controlplane.store.watch import Changes, Watch
from tests.support.pki import TestAuthority
from tests.support.tls_etcd import HOST, TlsEtcd, run_tls_etcd
from tests.support.waiting import eventually

SECONDS = 60.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsEtcd]:
    with run_tls_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest_asyncio.fixture
async def root(etcd: TlsEtcd) -> AsyncIterator[EtcdClient]:
    """The host's client of an etcd whose access is controlled; making it so can be repeated."""
    async with etcd.client(etcd.host_files, SECONDS) as client:
        await enable_access_control(client, HOST)
        await enable_access_control(client, HOST)
        yield client


@pytest_asyncio.fixture
async def gateway(etcd: TlsEtcd, root: EtcdClient) -> AsyncIterator[EtcdClient]:
    await add_user(root, "pod-1", GATEWAY_ROLE)
    async with etcd.client(etcd.authority.issue(Role.GATEWAY, "pod-1")) as client:
        yield client


async def refusal(client: EtcdClient, *operations: pb.RequestOp) -> Refusal:
    with pytest.raises(RequestRefused) as caught:
        await client.txn([], operations)
    return caught.value.refusal


async def outcome_of(attempt: Awaitable[object]) -> Refusal | object:
    """How etcd refused; what it answered otherwise."""
    try:
        return await attempt
    except RequestRefused as refused:
        return refused.refusal


async def test_a_host_may_do_everything(root: EtcdClient) -> None:
    assert (await root.read(lambda e: e.auth.AuthStatus, pb.AuthStatusRequest())).enabled
    await root.txn([], [kv.put(b"/cluster/test", b"1"), kv.put(b"/leader-test", b"2")])
    assert [member.name for member in await list_members(root)] == [HOST]


async def test_a_gateway_reads_what_it_polls(root: EtcdClient, gateway: EtcdClient) -> None:
    await root.txn([], [kv.put(b"/targets/h/node", b"{}")])
    picture = await read_snapshot(gateway)
    assert picture.revision > 0


async def test_a_gateway_leaves_quarantine_though_etcd_tells_it_no_status(gateway: EtcdClient) -> None:
    with pytest.raises(RequestRefused) as caught:
        await member_status(gateway, gateway.endpoints[0], seconds=SECONDS)
    assert caught.value.refusal is Refusal.PERMISSION_DENIED
    endpoint = gateway.pool.candidates()[0]
    gateway.pool.quarantine(endpoint)
    await eventually(lambda: not endpoint.quarantined, "the endpoint is probed and released", SECONDS)


async def test_a_gateway_watches_what_it_polls(root: EtcdClient, gateway: EtcdClient) -> None:
    start = (await root.txn([], [kv.put(b"/targets/h/first", b"1")])).header.revision
    async with Watch(gateway, (b"/cluster/", b"/targets/"), start) as items, asyncio.timeout(SECONDS):
        item = await anext(items)
        assert isinstance(item, Changes)
        assert item.changes[0].key == b"/targets/h/first"


@pytest.mark.parametrize(
    "key", [b"/cluster/config", b"/targets/h/health/xdp0", b"/leader", b"/pki/names/x", b"anything"]
)
async def test_a_gateway_can_write_no_key(gateway: EtcdClient, key: bytes) -> None:
    assert await refusal(gateway, kv.put(key, b"x")) is Refusal.PERMISSION_DENIED
    assert await refusal(gateway, kv.delete(key)) is Refusal.PERMISSION_DENIED


async def test_a_gateway_reads_nothing_else(gateway: EtcdClient) -> None:
    for key in (b"/pki/tokens/x", b"/events/1", b"/leader"):
        assert await refusal(gateway, kv.get(key)) is Refusal.PERMISSION_DENIED
    assert await refusal(gateway, kv.get_prefix(b"/")) is Refusal.PERMISSION_DENIED


async def test_a_gateway_changes_neither_members_nor_users(gateway: EtcdClient) -> None:
    with pytest.raises(StoreError) as caught:
        await add_learner(gateway, "https://127.0.0.1:1")
    assert isinstance(caught.value, RequestRefused)
    with pytest.raises(RequestRefused):
        await add_user(gateway, "pod-1", ROOT_ROLE)


async def test_a_gateway_does_no_maintenance(root: EtcdClient, gateway: EtcdClient) -> None:
    """Nor does it end a lease that others' keys hang on: the leader's is one."""
    lease = await Lease.grant(root, 60)
    try:
        at = (await root.txn([], [kv.put(b"/leader-test", b"x", lease.id)])).header.revision
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "revoke": lambda: gateway.write(
                lambda e: e.lease.LeaseRevoke, pb.LeaseRevokeRequest(id=lease.id)
            ),
            "compact": lambda: compact(gateway, at),
            "defragment": lambda: defragment(gateway, gateway.endpoints[0]),
            "disarm": lambda: disarm(gateway, Alarm(0, "NOSPACE")),
        }
        outcomes = {name: await outcome_of(attempt()) for name, attempt in attempts.items()}
        assert outcomes == dict.fromkeys(attempts, Refusal.PERMISSION_DENIED)
        assert await root.get(b"/leader-test") is not None
    finally:
        await lease.close()


async def test_names_without_a_user_are_refused(etcd: TlsEtcd, root: EtcdClient) -> None:
    """Also one whose user was removed, while its connection lives."""
    for role, name in ((Role.ADMIN, "alice"), (Role.AGENT, "gpu-1"), (Role.HOST, "storage-9")):
        async with etcd.client(etcd.authority.issue(role, name), 1.0) as client:
            with pytest.raises(StoreError):
                await client.get(b"/cluster/config")
    await add_user(root, "pod-2", GATEWAY_ROLE)
    async with etcd.client(etcd.authority.issue(Role.GATEWAY, "pod-2")) as client:
        await read_snapshot(client)
        await remove_user(root, "pod-2")
        await remove_user(root, "pod-2")
        with pytest.raises(StoreError):
            await read_snapshot(client)


async def test_wrong_certificates_never_connect(etcd: TlsEtcd, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path / "other").issue(Role.HOST, HOST)
    ours = etcd.host_files
    mixed = CredentialFiles(ours.ca, other.certificate, other.key)
    async with etcd.client(other, 1.0) as client:
        with pytest.raises(StoreUnavailable):
            await client.get(b"/cluster/config")
    assert not _handshake(etcd.client_url, mixed)
    assert not _handshake(etcd.client_url, None, ours.ca)
    assert _handshake(etcd.client_url, ours)


async def test_etcd_shows_a_renewed_certificate_without_a_restart(etcd: TlsEtcd) -> None:
    files = etcd.host_files
    before = files.load()
    address = str(urlsplit(etcd.client_url).hostname)
    key = load_key(before.key_pem)
    renewed = issue(
        etcd.authority.authority, key.public_key(), before.identity, utc_now(), addresses=[address]
    )
    write_file(files.certificate, to_pem(renewed), private=False)
    for url in (etcd.client_url, etcd.peer_url):
        assert _shown_serial(url, files) == renewed.serial_number != before.certificate.serial_number


async def test_only_hosts_are_peers(etcd: TlsEtcd, root: EtcdClient) -> None:
    """The peers' port takes no gateway, agent or administrator, although their CA is the same.

    And the clients' port takes hosts and gateways only: without a user one could still grant leases.
    """
    taken = {
        (place, role)
        for place, url in (("peer", etcd.peer_url), ("client", etcd.client_url))
        for role in Role
        if _handshake(url, etcd.authority.issue(role, "someone"))
    }
    assert taken == {("peer", Role.HOST), ("client", Role.HOST), ("client", Role.GATEWAY)}


async def test_a_token_is_good_once_and_only_with_its_secret(root: EtcdClient) -> None:
    token = TokenRecord("t1", hash_of(b"secret"), 4e9)
    await pki_records.add_token(root, token)
    assert token in await pki_records.read_tokens(root)
    assert await pki_records.find_token(root, "t1", b"wrong") is None
    assert await pki_records.find_token(root, "t2", b"secret") is None
    assert await pki_records.find_token(root, "t1", b"secret") == token
    both = await asyncio.gather(*(pki_records.take_token(root, token) for _ in range(2)))
    assert sorted(both) == [False, True]
    assert await pki_records.find_token(root, "t1", b"secret") is None
    assert b"secret" not in token.secret_hash.encode()


async def test_a_name_stays_with_its_role(root: EtcdClient) -> None:
    first = NameRecord("n1", "gateway", "0a", 4e9, HOST)
    assert await pki_records.claim_name(root, first) == first
    assert await pki_records.claim_name(root, NameRecord("n1", "admin", "0b", 4e9, HOST)) == first
    renewed = NameRecord("n1", "gateway", "0c", 4e9, HOST)
    assert await pki_records.claim_name(root, renewed) == renewed
    assert await pki_records.read_name(root, "n1") == renewed
    assert renewed in await pki_records.read_names(root)


def _shown_serial(url: str, files: CredentialFiles) -> int:
    """Serial number of the certificate that a server shows."""
    context = ssl.create_default_context(cafile=files.ca)
    context.check_hostname = False
    context.load_cert_chain(files.certificate, files.key)
    parts = urlsplit(url)
    with (
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SECONDS) as raw,
        context.wrap_socket(raw) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def _handshake(url: str, files: CredentialFiles | None, ca: Path | None = None) -> bool:
    """Whether a bare TLS connection with these credentials lives; in TLS 1.3 a refusal comes after it."""
    context = ssl.create_default_context(cafile=ca or (files.ca if files else None))
    context.check_hostname = False
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    try:
        with (
            socket.create_connection(address, timeout=SECONDS) as raw,
            context.wrap_socket(raw) as secured,
        ):
            secured.sendall(b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n")
            return secured.recv(1) != b""
    except OSError:
        return False
