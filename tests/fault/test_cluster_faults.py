"""What breaks under a cluster of three: services, etcd members, their data; killed or suspended, and back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clustercli.call import CallError
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli
from tests.support.cluster_hosts import (
    ClusterHost,
    ask_cluster,
    ask_members,
    cards_of,
    cli_json,
    cluster_hosts,
    join_all,
    wait_voters,
)
from tests.support.procs import suspend, wait_until

pytestmark = pytest.mark.slow

CARDS = {"L0P1", "L0P2", "L0P3"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    with cluster_hosts(tmp_path_factory.mktemp("faults"), LoopbackNet.pick(), 3) as hosts:
        join_all(hosts)
        yield hosts


@pytest.fixture
def hosts(three: list[ClusterHost]) -> list[ClusterHost]:
    """The three hosts, all well at the start of each test, also after one that failed half-way."""
    for host in three:
        if host.running.returncode is not None:
            host.start()
    settle(three)
    return three


def settle(hosts: list[ClusterHost]) -> None:
    wait_voters(hosts[0], 3)
    for host in hosts:
        wait_until(host.etcd.has_leader, f"{host.name}'s etcd has a leader")
    leader_of(hosts)


def leader_of(hosts: list[ClusterHost], asked: ClusterHost | None = None) -> ClusterHost:
    name = str(wait_document(asked or hosts[0], lambda document: document["leader"], "a leader")["leader"])
    return next(host for host in hosts if host.name == name)


def wait_document(asked: ClusterHost, right: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """get_cluster's document, once it is answered and right."""

    def probe() -> dict[str, Any] | None:
        with contextlib.suppress(CallError):
            document = ask_cluster(asked)
            return document if right(document) else None
        return None

    return wait_until(probe, what, every=0.1)


def wait_cards(asked: ClusterHost) -> None:
    """Until the host answers, with all cards."""
    wait_document(asked, lambda document: set(cards_of(document)) == CARDS, "all cards")


def member_ids(host: ClusterHost) -> dict[str, str]:
    return {member["host"]: member["member_id"] for member in ask_members(host)["members"]}


def test_another_host_leads_when_the_leaders_service_is_killed(hosts: list[ClusterHost]) -> None:
    leader = leader_of(hosts)
    others = [host for host in hosts if host is not leader]
    etcd_pid = leader.etcd_pid()
    ids = member_ids(hosts[0])
    leader.running.kill()
    wait_until(lambda: not Path(f"/proc/{etcd_pid}").exists(), "its etcd ended with it")
    follower = wait_until(
        lambda: next((h for h in others if leader_of(hosts, others[0]) is h), None), "another leads"
    )
    wait_cards(follower)
    leader.start()
    settle(hosts)
    assert member_ids(hosts[0]) == ids, "the restarted host is the member it was"


def test_a_clean_stop_hands_the_leadership_on(hosts: list[ClusterHost]) -> None:
    leader = leader_of(hosts)
    other = next(host for host in hosts if host is not leader)
    assert leader.running.stop(10.0) == 0
    wait_until(lambda: leader_of(hosts, other) is not leader, "another leads")
    leader.start()
    settle(hosts)


def test_a_killed_etcd_member_is_started_again_from_its_data(hosts: list[ClusterHost]) -> None:
    ids = member_ids(hosts[0])
    pid = hosts[1].kill_etcd()
    wait_until(lambda: _etcd_pid(hosts[1]) not in {0, pid}, "a new etcd process")
    settle(hosts)
    assert member_ids(hosts[0]) == ids
    hosts[1].running.wait_event("no etcd member", where=lambda e: "code -9" in e["reason"])


def test_lost_data_of_a_running_member_are_replaced_through_the_others(hosts: list[ClusterHost]) -> None:
    ids = member_ids(hosts[0])
    shutil.rmtree(hosts[1].data_dir)
    wait_until(
        lambda: member_ids(hosts[0]).get("host-2") not in {None, ids["host-2"]},
        "a new member of host-2",
    )
    settle(hosts)
    now = member_ids(hosts[0])
    assert (now["host-1"], now["host-3"]) == (ids["host-1"], ids["host-3"])
    quorum = {"members": 3, "tolerated_failures": 1}
    wait_document(hosts[1], lambda document: document["etcd_quorum"] == quorum, "the quorum is whole")


def test_data_lost_while_the_leaders_host_was_down_are_replaced_too(hosts: list[ClusterHost]) -> None:
    leader = leader_of(hosts)
    ids = member_ids(hosts[0])
    leader.running.kill()
    shutil.rmtree(leader.data_dir)
    leader.start()
    settle(hosts)
    assert member_ids(hosts[0])[leader.name] != ids[leader.name]


def test_foreign_data_are_not_served(hosts: list[ClusterHost]) -> None:
    victim, donor = hosts[2], hosts[1]
    ids = member_ids(hosts[0])
    victim.running.kill()
    donor.running.kill()
    shutil.rmtree(victim.data_dir)
    shutil.copytree(donor.data_dir, victim.data_dir)
    donor.start()
    victim.start()
    victim.running.wait_event("no etcd member", 30.0, where=lambda e: "its data" in e["reason"])
    settle(hosts)
    now = member_ids(hosts[0])
    assert now["host-3"] != ids["host-3"]
    assert now["host-2"] == ids["host-2"]


def test_a_suspended_member_is_kept_and_works_again(hosts: list[ClusterHost]) -> None:
    ids = member_ids(hosts[0])
    pid = hosts[2].etcd_pid()
    suspend(pid)
    try:
        cycles = len(leader_of(hosts).running.events("cycle"))
        wait_until(
            lambda: len(leader_of(hosts).running.events("cycle")) > cycles + 4, "the leader goes on", 30.0
        )
        wait_cards(hosts[2])  # it asks the others
        assert member_ids(hosts[0]) == ids
    finally:
        os.kill(pid, signal.SIGCONT)
    settle(hosts)


def test_a_suspended_leader_is_followed_by_another_and_writes_nothing_when_it_wakes(
    hosts: list[ClusterHost],
) -> None:
    leader = leader_of(hosts)
    other = next(host for host in hosts if host is not leader)
    lost = len(leader.running.events("leadership lost"))
    leader.running.suspend()
    try:
        wait_until(lambda: leader_of(hosts, other) is not leader, "another leads")
    finally:
        leader.running.resume()
    wait_until(lambda: len(leader.running.events("leadership lost")) > lost, "it notices")
    assert leader_of(hosts, other) is not leader
    settle(hosts)


def test_without_a_quorum_members_are_still_told_and_get_cluster_says_why_not(
    hosts: list[ClusterHost],
) -> None:
    before = ask_members(hosts[0])
    pids = [hosts[1].etcd_pid(), hosts[2].etcd_pid()]
    for pid in pids:
        suspend(pid)
    try:
        assert [m["member_id"] for m in ask_members(hosts[0])["members"]] == [
            m["member_id"] for m in before["members"]
        ]
        outcome = run_cli("--host", hosts[0].api, "get_cluster")
        assert outcome.returncode == 1
        assert "quorum" in outcome.stderr
        assert outcome.stderr.count("\n") == 1
        removal = run_cli("--host", hosts[0].api, "--timeout", "6", "remove_node", "-n", "host-2")
        assert removal.returncode == 1
        assert "repeat remove_node" in removal.stderr
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    settle(hosts)
    document = wait_document(hosts[0], lambda document: document["hosts"], "the hosts")
    assert [host["enabled"] for host in document["hosts"]] == [1, 1, 1]


def test_remove_node_is_refused_when_it_would_cost_the_quorum(hosts: list[ClusterHost]) -> None:
    hosts[2].running.suspend()
    pid = hosts[2].etcd_pid()
    suspend(pid)
    try:
        # Raft may have to choose another leader first.
        wait_document(hosts[0], lambda document: document["hosts"], "the others answer")
        outcome = run_cli("--host", hosts[0].api, "remove_node", "-n", "host-2")
        assert outcome.returncode == 1
        assert "quorum would be lost" in outcome.stderr
        assert ask_cluster(hosts[0])["hosts"][1]["enabled"] == 1
    finally:
        os.kill(pid, signal.SIGCONT)
        hosts[2].running.resume()
    settle(hosts)


def test_a_host_that_was_removed_while_it_was_down_stays_out_until_add_node(hosts: list[ClusterHost]) -> None:
    gone = hosts[2]
    gone.running.kill()
    assert cli_json(hosts[0], "remove_node", "-n", gone.name)["forgotten_serials"] == []
    gone.start()
    gone.running.wait_event("host left the cluster", 30.0)
    quorum = {"members": 2, "tolerated_failures": 0}
    shown = wait_document(hosts[0], lambda document: document["etcd_quorum"] == quorum, "two are left")
    assert [host["enabled"] for host in shown["hosts"]] == [1, 1, 0]
    assert cards_of(shown)["L0P3"]["slot"] >= 0, "its card keeps its slot"
    refused = run_cli("--host", gone.api, "get_cluster")
    assert refused.returncode == 1
    assert "in no cluster" in refused.stderr
    cli_json(gone, "add_node", "-n", hosts[0].api)
    settle(hosts)
    document = wait_document(gone, lambda document: document["hosts"], "the hosts")
    assert [host["enabled"] for host in document["hosts"]] == [1, 1, 1]


def _etcd_pid(host: ClusterHost) -> int:
    try:
        return host.etcd_pid()
    except AssertionError:
        return 0
