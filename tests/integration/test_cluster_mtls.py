"""Three hosts under mTLS: tokens, roles, and everyone who is refused, with real services and real etcd."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from akv.v1 import cluster_pb2, cluster_pb2_grpc

from controlplane.base import pki, tls
from controlplane.base.credentials import CredentialFiles
from controlplane.base.join_token import parse_join_token
from controlplane.base.pki import Role
from controlplane.cluster.enrollment import enroll
from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import Refusal, RequestRefused
from controlplane.store.snapshot import read_snapshot
from tests.support.addresses import LoopbackNet
from tests.support.cli import Outcome, run_cli
from tests.support.cluster_hosts import (
    API_PORT,
    ClusterHost,
    ask_cluster,
    card,
    cli_json,
    cluster_hosts,
    join_all,
    wait_voters,
)
from tests.support.grpc_peers import RecordingDataplane, serials
from tests.support.pki import TestAuthority
from tests.support.pod import Pod
from tests.support.procs import wait_until

pytestmark = pytest.mark.slow
SECONDS = 60.0


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    with cluster_hosts(tmp_path_factory.mktemp("mtls"), LoopbackNet.pick(), 3, secure=True) as hosts:
        join_all(hosts)
        yield hosts


@dataclass(frozen=True)
class Issued:
    """Credentials that a host issued to this test."""

    files: CredentialFiles

    @property
    def options(self) -> tuple[str, ...]:
        """clustercli's options."""
        files = self.files
        return ("--ca", str(files.ca), "--cert", str(files.certificate), "--key", str(files.key))

    @property
    def yaml(self) -> dict[str, str]:
        """gateway.yaml's keys."""
        return {
            "cluster_security": "mtls",
            "cluster_ca": str(self.files.ca),
            "cluster_cert": str(self.files.certificate),
            "cluster_key": str(self.files.key),
        }


@pytest.fixture(scope="module")
def admin(hosts: list[ClusterHost], tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return issue(hosts[0], "admin", "alice", tmp_path_factory.mktemp("admin"))


@pytest.fixture(scope="module")
def gateway(hosts: list[ClusterHost], tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return issue(hosts[1], "gateway", "pod-1", tmp_path_factory.mktemp("gateway"))


def issue(host: ClusterHost, role: str, name: str, directory: Path) -> Issued:
    outcome = run_cli(
        "--host", host.asked_at, "pki", "issue", "--role", role, "--name", name, "--out", str(directory)
    )
    assert outcome.returncode == 0, outcome
    return Issued(CredentialFiles.in_directory(directory))


def ask(host: ClusterHost, issued: Issued, *command: str) -> Outcome:
    """clustercli over the network, with a certificate."""
    return run_cli("--host", host.api, *issued.options, "--output", "json", *command)


def status(host: ClusterHost, credentials: grpc.ChannelCredentials) -> tuple[grpc.StatusCode, str]:
    """What GetCluster answers to these credentials, without clustercli's own checks."""

    async def call() -> tuple[grpc.StatusCode, str]:
        options = list(tls.TLS_OPTIONS)
        async with grpc.aio.secure_channel(host.api, credentials, options=options) as channel:
            stub = cluster_pb2_grpc.ClusterServiceStub(channel)
            try:
                await stub.GetCluster(cluster_pb2.GetClusterRequest(), timeout=SECONDS)
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details() or ""
            return grpc.StatusCode.OK, ""

    return asyncio.run(call())


def authority_of(host: ClusterHost, directory: Path) -> TestAuthority:
    """The cluster's own CA, as one who has a host's files has it."""
    certificate = (host.pki_dir / "ca.pem").read_bytes()
    key = (host.pki_dir / "ca.key").read_bytes()
    return TestAuthority(directory, pki.load_authority(certificate, key, pki.utc_now()))


def audit(host: ClusterHost, call: str, who: str) -> dict[str, Any]:
    """The record of a call; the answer may be here before the log is read."""
    return host.running.wait_event(
        "audit", SECONDS, lambda event: event["call"].endswith(call) and event["who"] == who
    )


def test_three_hosts_are_a_quorum(hosts: list[ClusterHost]) -> None:
    for host in hosts:
        document = ask_cluster(host)
        assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
        assert [shown["host"] for shown in document["hosts"]] == ["host-1", "host-2", "host-3"]
        urls = [url for shown in document["hosts"] for url in shown["addresses"].values() if "://" in url]
        assert urls
        assert all(url.startswith("https://") for url in urls)


def doctor(host: ClusterHost, *arguments: str) -> dict[str, dict[str, str]]:
    """The checks of a host by name."""
    outcome = run_cli("--host", host.asked_at, "--output", "json", "doctor", *arguments)
    assert outcome.stdout, outcome.stderr
    return {check["name"]: check for check in json.loads(outcome.stdout)["checks"]}


def test_a_host_without_a_certificate_is_looked_at_by_all_hosts_before_it_joins(
    hosts: list[ClusterHost], tmp_path: Path
) -> None:
    """The token that is shown for it stays good; what the others don't reach, and what is taken, is told."""
    net = hosts[0].address.rpartition(".")[0]
    names = [f"{check}-{host.name}" for host in hosts for check in ("to", "from", "clock", "names")]
    newcomer = ClusterHost("host-9", f"{net}.9", tmp_path / "host-9", secure=True)
    newcomer.set_cards(card(9))
    newcomer.configure()
    newcomer.start()
    try:
        checks = doctor(newcomer, "-n", hosts[0].api)
        assert (checks["cluster"]["result"], "--token" in checks["cluster"]["text"]) == ("skipped", True)
        token = cli_json(hosts[0], "pki", "token")["token"]
        checks = doctor(newcomer, "-n", hosts[0].api, "--token", token)
        assert checks["cluster"]["result"] == checks["identity"]["result"] == "ok", checks
        for name in names:
            wanted = {"ok", "warning"} if name.startswith(("names", "to")) else {"ok"}
            assert checks[name]["result"] in wanted, checks[name]
        for port in (API_PORT, 2379, 2380, 5001, 7891, 9427):
            assert f"{newcomer.address}:{port}" in checks["from-host-2"]["text"]

        newcomer.set_cards(card(9) | {"serial": "L0P1"})  # that of host-1's card, which has another NQN
        taken = (newcomer.address, 2380)
        with socket.create_server(taken, backlog=0), socket.create_connection(taken, timeout=10):
            checks = doctor(newcomer, "-n", hosts[2].api, "--token", token)
        assert checks["duplicate-xdp9"]["result"] == "failed"
        for host in hosts:
            assert (
                f"{host.name} does not reach {newcomer.address}:2380" in checks[f"from-{host.name}"]["text"]
            )

        wrong = token.split(".")
        wrong[2] = "0" * 12
        checks = doctor(newcomer, "-n", hosts[0].api, "--token", ".".join(wrong))
        assert checks["cluster"]["result"] == "failed"
        assert "join token is not known" in checks["cluster"]["text"]
        assert token.split(".")[2] in {t["token_id"] for t in cli_json(hosts[0], "pki", "show")["tokens"]}
    finally:
        newcomer.end()


def test_private_files_are_the_owners_alone(hosts: list[ClusterHost]) -> None:
    for host in hosts:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in host.pki_dir.iterdir()}
        assert modes == {"ca.pem": 0o644, "cert.pem": 0o644, "key.pem": 0o600, "ca.key": 0o600}
        assert stat.S_IMODE(host.pki_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(host.admin_socket.stat().st_mode) == 0o600


def test_an_administrator_works_from_afar(hosts: list[ClusterHost], admin: Issued) -> None:
    outcome = ask(hosts[2], admin, "get_cluster")
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["name"] == "kv-cache"
    shown = json.loads(ask(hosts[1], admin, "pki", "show").stdout)
    named = {(certificate["role"], certificate["name"]) for certificate in shown["certificates"]}
    assert {("host", "host-1"), ("host", "host-2"), ("host", "host-3"), ("admin", "alice")} <= named


def test_administrative_calls_leave_a_record(hosts: list[ClusterHost], admin: Issued) -> None:
    outcome = ask(hosts[2], admin, "remove_node", "-n", "host-9")
    assert outcome.returncode == 1
    record = audit(hosts[2], "RemoveNode", "admin alice")
    assert (record["what"], record["result"]) == ("host='host-9'", "NOT_FOUND")
    local = audit(hosts[0], "CreateCluster", "admin local")
    assert (local["what"], local["result"]) == ("name='kv-cache'", "OK")

    def enrolled() -> list[str]:
        events = hosts[0].running.events("audit")
        return [event["result"] for event in events if event["call"] == "enroll"]

    wait_until(lambda: enrolled() == ["OK", "OK"], "both enrolments are recorded")


def test_no_secret_is_in_a_log(hosts: list[ClusterHost]) -> None:
    made = cli_json(hosts[0], "pki", "token")["token"]
    used = [line for host in hosts for line in host.running.lines]
    assert any("add_node" in line or "AddNode" in line for line in used)
    assert not [line for line in used if made.split(".")[3] in line or "PRIVATE KEY" in line]
    assert not [line for line in used if "akv1." in line]


def test_a_gateway_reads_the_cluster(hosts: list[ClusterHost], gateway: Issued, tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", [host.api for host in hosts], **gateway.yaml)
    dataplane = RecordingDataplane(pod.socket)
    try:
        program = pod.start()
        cards = {"L0P1", "L0P2", "L0P3"}
        dataplane.wait_plan(lambda plan: serials(plan) == cards, "a plan with the cluster's cards", SECONDS)
        program.wait_event("Cluster pinned")
        assert not program.events("Cluster stale")
    finally:
        pod.stop()
        dataplane.stop()


def test_a_gateway_administers_nothing(hosts: list[ClusterHost], gateway: Issued) -> None:
    commands = (
        ("remove_node", "-n", "host-3"),
        ("pki", "token"),
        ("pki", "show"),
        ("create_cluster", "--name", "mine"),
    )
    for command in commands:
        outcome = ask(hosts[0], gateway, *command)
        assert outcome.returncode == 1, outcome
        assert "is for the role admin, and the certificate is that of gateway pod-1" in outcome.stderr
    assert ask(hosts[0], gateway, "get_members").returncode == 0
    assert audit(hosts[0], "RemoveNode", "gateway pod-1")["result"] == "PERMISSION_DENIED"


def test_a_gateway_writes_nothing_to_etcd(hosts: list[ClusterHost], gateway: Issued) -> None:
    async def attempt() -> None:
        credentials = tls.NewestCredentials(gateway.files)
        endpoints = [f"{host.address}:2379" for host in hosts]
        async with EtcdClient(endpoints, call_seconds=SECONDS, credentials=credentials) as client:
            assert len((await read_snapshot(client)).hosts) == 3
            for operation in (kv.put(b"/cluster/x", b""), kv.delete(b"/leader"), kv.get(b"/pki/names/alice")):
                with pytest.raises(RequestRefused) as caught:
                    await client.txn([], [operation])
                assert caught.value.refusal is Refusal.PERMISSION_DENIED

    asyncio.run(attempt())


def test_a_gateway_renews_its_own_certificate(hosts: list[ClusterHost], tmp_path: Path) -> None:
    issued = issue(hosts[0], "gateway", "pod-2", tmp_path / "pod-2")
    before = issued.files.load()
    outcome = ask(hosts[1], issued, "pki", "renew")
    assert outcome.returncode == 0, outcome.stderr
    after = issued.files.load()
    assert after.identity == before.identity
    assert after.certificate.serial_number != before.certificate.serial_number


def refuses(host: ClusterHost, issued: Issued) -> bool:
    return ask(host, issued, "get_members").returncode == 1


def test_a_revoked_administrator_is_refused_by_every_host(hosts: list[ClusterHost], tmp_path: Path) -> None:
    mallory = issue(hosts[0], "admin", "mallory", tmp_path / "mallory")
    assert ask(hosts[1], mallory, "get_members").returncode == 0
    assert run_cli("--host", hosts[0].asked_at, "pki", "revoke", "--name", "mallory").returncode == 0
    for host in hosts:
        wait_until(partial(refuses, host, mallory), f"{host.name} knows", SECONDS)
    assert "the certificates of admin mallory were revoked" in ask(hosts[2], mallory, "pki", "show").stderr


def test_a_host_joins_only_as_itself(hosts: list[ClusterHost]) -> None:
    files = CredentialFiles.in_directory(hosts[1].pki_dir)

    async def attempt() -> tuple[grpc.StatusCode, str]:
        credentials = tls.channel_credentials(files.load())
        options = list(tls.TLS_OPTIONS)
        async with grpc.aio.secure_channel(hosts[0].api, credentials, options=options) as channel:
            stub = cluster_pb2_grpc.ClusterServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.JoinCluster(cluster_pb2.JoinClusterRequest(host="host-3"), timeout=SECONDS)
            return caught.value.code(), caught.value.details() or ""

    code, words = asyncio.run(attempt())
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "host host-2 can't join as 'host-3'" in words


def test_those_without_the_right_certificate_are_refused(hosts: list[ClusterHost], tmp_path: Path) -> None:
    host, ours = hosts[0], authority_of(hosts[0], tmp_path)
    ca = ours.authority.certificate_pem
    other = TestAuthority(tmp_path / "other").issue(Role.ADMIN, "eve").load()
    assert status(host, grpc.ssl_channel_credentials(ca))[0] is grpc.StatusCode.UNAVAILABLE
    foreign = grpc.ssl_channel_credentials(ca, other.key_pem, other.certificate_pem)
    assert status(host, foreign)[0] is grpc.StatusCode.UNAVAILABLE
    valid = ours.issue(Role.ADMIN, "bob").load()
    assert status(host, tls.channel_credentials(valid))[0] is grpc.StatusCode.OK
    key, eve = pki.new_key(), pki.Identity(Role.ADMIN, "eve")
    nobody = ours.odd(key.public_key(), eve, common_name=False)
    code, words = status(host, grpc.ssl_channel_credentials(ca, pki.key_pem(key), nobody))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "0 common names" in words
    code, words = status(host, tls.channel_credentials(ours.issue(Role.AGENT, "gpu-1").load()))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "is for the role admin or gateway or host" in words


def test_an_expired_certificate_is_refused(hosts: list[ClusterHost], tmp_path: Path) -> None:
    """The same key and name twice; only the end differs."""
    ours, key, bob = authority_of(hosts[0], tmp_path), pki.new_key(), pki.Identity(Role.ADMIN, "bob")
    ends = {timedelta(hours=1): grpc.StatusCode.OK, timedelta(minutes=-1): grpc.StatusCode.UNAVAILABLE}
    for end, expected in ends.items():
        pem = ours.odd(key.public_key(), bob, begin=timedelta(days=-2), end=end)
        shown = grpc.ssl_channel_credentials(ours.authority.certificate_pem, pki.key_pem(key), pem)
        assert status(hosts[0], shown)[0] is expected


def test_clustercli_says_what_is_missing(hosts: list[ClusterHost], admin: Issued, tmp_path: Path) -> None:
    """Without a certificate, with another cluster's, and with a host's certificate in the place of the CA."""
    bare = run_cli("--host", hosts[0].api, "get_cluster")
    assert bare.returncode == 3
    assert "give --ca, --cert and --key" in bare.stderr
    other = Issued(TestAuthority(tmp_path / "other").issue(Role.ADMIN, "eve"))
    foreign = ask(hosts[0], other, "get_cluster")
    assert foreign.returncode == 3
    assert "shows no certificate of a host of your cluster" in foreign.stderr
    peer = admin.files
    wrong = run_cli(
        "--host", hosts[0].api, "--ca", str(hosts[0].pki_dir / "cert.pem"),
        "--cert", str(peer.certificate), "--key", str(peer.key), "get_cluster",
    )  # fmt: skip
    assert wrong.returncode == 2
    assert "is not that of a CA" in wrong.stderr
    half = run_cli("--host", hosts[0].api, "--ca", str(peer.ca), "get_cluster")
    assert half.returncode == 2
    assert "--cert, --key is missing" in half.stderr


def test_a_host_without_token_or_with_a_used_one_stays_outside(
    hosts: list[ClusterHost], tmp_path: Path
) -> None:
    """It answers its own administrator only, and says what it needs."""
    token = cli_json(hosts[0], "pki", "token")["token"]
    asyncio.run(enroll(hosts[0].address, parse_join_token(token), "host-7", "192.0.2.7"))
    late = ClusterHost("host-8", LoopbackNet.pick().host(8), tmp_path / "host-8", secure=True)
    late.set_cards()
    late.configure()
    late.start()
    try:
        for options, words in (
            ((), "has no certificate of the cluster: give add_node a --token"),
            (("--token", "akv1.x"), "not a join token"),
            (("--token", token), "it is good for one host only"),
        ):
            outcome = run_cli("--host", late.asked_at, "add_node", "-n", hosts[0].api, *options)
            assert outcome.returncode == 1, outcome
            assert words in outcome.stderr
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((late.address, API_PORT), timeout=SECONDS)
    finally:
        late.stop()


def test_a_host_that_lost_its_data_comes_back(hosts: list[ClusterHost]) -> None:
    """The whole way of a lost member under TLS: the others are asked, the member is replaced."""
    third = hosts[2]
    before = {member["host"]: member["member_id"] for member in wait_voters(hosts[0], 3)["members"]}
    third.stop()
    shutil.rmtree(third.data_dir)
    third.start()

    def replaced() -> bool:
        members = {m["host"]: m["member_id"] for m in wait_voters(hosts[0], 3, 60.0)["members"]}
        return members.get("host-3") not in {None, before["host-3"]}

    wait_until(replaced, "host-3 has a new member", 60.0, every=0.2)


def test_a_removed_host_joins_again_with_its_certificate(hosts: list[ClusterHost]) -> None:
    cli_json(hosts[0], "remove_node", "-n", "host-2")
    cli_json(hosts[1], "add_node", "-n", hosts[0].api)
    wait_voters(hosts[0], 3, 60.0)


def test_a_host_that_moves_to_another_address_is_a_member_there(hosts: list[ClusterHost]) -> None:
    moved = hosts[2]
    moved.running.stop()
    moved.address = moved.address.rsplit(".", 1)[0] + ".9"
    moved.configure()
    moved.start()

    def at_new_address() -> bool:
        members = cli_json(hosts[0], "get_members")["members"]
        urls = [m["peer_urls"] for m in members if m["host"] == moved.name and not m["learner"]]
        return urls == [[f"https://{moved.address}:2380"]]

    wait_until(at_new_address, "the member at the new address", 60.0, every=0.5)
    assert ask_cluster(moved)["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
