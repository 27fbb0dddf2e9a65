"""Three hosts with real etcd members: forming the cluster, cards and health, and what clustercli shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controlplane.model.cards import ClusterSnapshot
from controlplane.store.client import EtcdClient
from controlplane.store.snapshot import read_snapshot
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli
from tests.support.cluster_hosts import (
    ClusterHost,
    ask_cluster,
    card,
    cards_of,
    cli_json,
    cluster_hosts,
    join_all,
)
from tests.support.procs import wait_until

pytestmark = pytest.mark.slow
WARMUP = 3


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    with cluster_hosts(tmp_path_factory.mktemp("three"), LoopbackNet.pick(), 3) as hosts:
        for host in hosts:
            host.start_exporter()
        join_all(hosts)
        wait_healthy(hosts)
        yield hosts


def wait_healthy(hosts: list[ClusterHost]) -> None:
    """Until every card is: for a moment one may be unknown, when its exporter is slow to answer."""
    serials = {"L0P1", "L0P2", "L0P3"}

    def probe() -> bool:
        shown = cards_of(ask_cluster(hosts[0]))
        return {serial for serial, shown_card in shown.items() if shown_card["health_xdp"] == 0} == serials

    wait_until(probe, "every card is healthy", every=0.1)


def wait_card(host: ClusterHost, serial: str, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Until get_cluster shows the card as wanted."""

    def probe() -> dict[str, Any] | None:
        shown = cards_of(ask_cluster(host)).get(serial)
        return shown if shown is not None and right(shown) else None

    return wait_until(probe, f"card {serial} as wanted", every=0.1)


def snapshot(host: ClusterHost) -> ClusterSnapshot:
    """The records, read by a client of the test's own."""

    async def read() -> ClusterSnapshot:
        async with EtcdClient([f"{host.address}:2379"], call_seconds=10.0) as client:
            return await read_snapshot(client)

    return asyncio.run(read())


def test_get_cluster_has_the_manuals_shape(hosts: list[ClusterHost]) -> None:
    wait_healthy(hosts)
    document = cli_json(hosts[1], "get_cluster")
    assert document["name"] == "kv-cache"
    assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
    assert document["etcd_learners"] == 0
    assert [(host["host"], host["enabled"]) for host in document["hosts"]] == [
        ("host-1", 1),
        ("host-2", 1),
        ("host-3", 1),
    ]
    shown = cards_of(document)["L0P2"]
    assert (shown["device"], shown["health_xdp"], shown["state"]) == ("xdp2", 0, "running")
    assert shown["addresses"] == ["tcp:127.0.0.1:4420"]
    assert 0 <= shown["slot"] < 8
    assert document["leader"] in {"host-1", "host-2", "host-3"}
    assert len(document["fingerprint"]) == 16


def test_every_host_gives_the_same_members_and_cluster(hosts: list[ClusterHost]) -> None:
    members = [cli_json(host, "get_members") for host in hosts]
    assert members[0] == members[1] == members[2]
    assert [m["client_urls"] for m in members[0]["members"]] == [[f"http://{h.address}:2379"] for h in hosts]
    uuids = {ask_cluster(host)["cluster_uuid"] for host in hosts}
    assert uuids == {members[0]["cluster_uuid"]}


def test_tables_are_for_people(hosts: list[ClusterHost]) -> None:
    outcome = run_cli("--host", hosts[0].api, "get_cluster")
    assert outcome.returncode == 0
    for word in ("cluster kv-cache", "host-1", "L0P1", "0 healthy", "etcd quorum of 3, tolerates 1"):
        assert word in outcome.stdout
    assert "voter" in run_cli("--host", hosts[0].api, "get_members").stdout


def test_create_and_add_are_idempotent_and_refuse_another_cluster(hosts: list[ClusterHost]) -> None:
    uuid = ask_cluster(hosts[0])["cluster_uuid"]
    assert cli_json(hosts[0], "create_cluster", "--name", "kv-cache")["cluster_uuid"] == uuid
    assert cli_json(hosts[2], "add_node", "-n", hosts[0].api)["cluster_uuid"] == uuid
    other = run_cli("--host", hosts[0].api, "create_cluster", "--name", "other")
    assert other.returncode == 1
    assert "host-1 is in cluster kv-cache" in other.stderr
    assert len(cli_json(hosts[0], "get_members")["members"]) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["remove_node", "-n", "nobody"], 1, ["no host nobody", "host-1, host-2, host-3"]),
        (["remove_node", "-n", "a/b"], 1, ["not a host name"]),
        (["create_cluster", "--name", "bad name"], 1, ["is no name for a cluster"]),
        (["add_node", "-n", "192.0.2.1"], 1, ["not a loopback address"]),
        (["add_node", "-n", "1:2:3:4"], 1, ["more than one colon"]),
        (["add_node"], 2, ["Missing option"]),
        (["--output", "xml", "get_cluster"], 2, ["xml"]),
    ],
)
def test_refusals_are_one_sentence_and_an_exit_code(
    hosts: list[ClusterHost], arguments: list[str], code: int, words: list[str]
) -> None:
    outcome = run_cli("--host", hosts[0].api, *arguments)
    assert outcome.returncode == code
    assert all(word in outcome.stderr for word in words), outcome.stderr


def test_health_checking_and_reflection_are_on(hosts: list[ClusterHost]) -> None:
    with grpc.insecure_channel(hosts[0].api) as channel:
        request = health_pb2.HealthCheckRequest(service="akv.v1.ClusterService")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=15)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=15
        )
        names = {service.name for service in next(listed).list_services_response.service}
        assert {"akv.v1.ClusterService", "grpc.health.v1.Health"} <= names


def test_health_follows_the_exporter_and_an_exporter_that_is_away_is_never_sick(
    hosts: list[ClusterHost],
) -> None:
    host = hosts[1]
    host.set_cards(card(2, state="stopped"))
    sick = wait_card(hosts[0], "L0P2", lambda c: c["health_xdp"] == 1 and c["state"] == "stopped")
    assert "xdp_service_status 0" in sick["reason"]
    host.set_cards(card(2))
    wait_card(hosts[0], "L0P2", lambda c: c["health_xdp"] == 0)
    assert host.exporter is not None
    host.exporter.kill()
    wait_card(hosts[0], "L0P2", lambda c: c["health_xdp"] == 2)
    record = next(r for r in snapshot(hosts[0]).health if r.xdp_serial == "L0P2")
    assert record.last_known == 0
    host.start_exporter()
    wait_healthy(hosts)


@pytest.mark.parametrize("script", ["sleep 60", "exit 3", "echo garbage", 'echo \'{"cards": [{"id": 7}]}\''])
def test_a_broken_card_cli_removes_nothing_and_is_logged_once(hosts: list[ClusterHost], script: str) -> None:
    host = hosts[2]
    before = len(host.running.events("cards unknown"))
    host.set_cli(script)
    wait_until(lambda: len(host.running.events("cards unknown")) > before, "cards unknown")
    revision = [r for r in snapshot(hosts[0]).cards if r.host == host.name]
    cycles = len(leader_of(hosts).running.events("cycle"))
    wait_until(lambda: len(leader_of(hosts).running.events("cycle")) >= cycles + 4, "four more cycles")
    assert [r for r in snapshot(hosts[0]).cards if r.host == host.name] == revision
    assert len(host.running.events("cards unknown")) == before + 1
    answers = len(host.running.events("card CLI answers again"))
    host.set_cards(card(3))
    wait_until(lambda: len(host.running.events("card CLI answers again")) > answers, "the card CLI answers")


def test_a_card_that_is_gone_is_removed_but_keeps_its_slot_and_comes_back_elsewhere(
    hosts: list[ClusterHost],
) -> None:
    before = ask_cluster(hosts[0])
    slot = cards_of(before)["L0P3"]["slot"]
    hosts[2].set_cards()
    wait_until(lambda: "L0P3" not in cards_of(ask_cluster(hosts[0])), "the card is gone")
    gone = ask_cluster(hosts[0])
    assert gone["fingerprint"] == before["fingerprint"]
    wait_until(lambda: not [r for r in snapshot(hosts[0]).health if r.xdp_serial == "L0P3"], "no health")
    hosts[2].set_cards(card(3, port=5555) | {"id": "xdp9"})
    back = wait_card(hosts[0], "L0P3", lambda c: c["health_xdp"] == 0)
    assert (back["device"], back["slot"], back["addresses"]) == ("xdp9", slot, ["tcp:127.0.0.1:5555"])
    hosts[2].set_cards(card(3))
    wait_card(hosts[0], "L0P3", lambda c: c["device"] == "xdp3")


def test_nothing_is_written_while_nothing_changes(hosts: list[ClusterHost]) -> None:
    """Five cycles in a row; on a busy machine an exporter that answers late is a change now and then."""

    def quiet() -> bool:
        wait_healthy(hosts)
        before = snapshot(hosts[0]).revision
        cycles = len(leader_of(hosts).running.events("cycle"))
        wait_until(lambda: len(leader_of(hosts).running.events("cycle")) >= cycles + 5, "five more cycles")
        return snapshot(hosts[0]).revision == before

    wait_until(quiet, "cycles without a write", 60.0)


def test_the_leader_says_one_sentence_a_cycle(hosts: list[ClusterHost]) -> None:
    cycles = len(leader_of(hosts).running.events("cycle"))
    wait_until(lambda: len(leader_of(hosts).running.events("cycle")) >= cycles + 3, "sentences")
    assert "3 voters" in leader_of(hosts).running.events("cycle")[-1]["says"]


def leader_of(hosts: list[ClusterHost]) -> ClusterHost:
    """The host that leads now."""
    name = wait_until(lambda: ask_cluster(hosts[0])["leader"], "a leader")
    return next(host for host in hosts if host.name == name)
