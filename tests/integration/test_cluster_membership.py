"""Hosts come and go: one, two (a learner), three; out by remove_node and in again; interrupted joins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

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
    wait_voters,
)
from tests.support.procs import Program, python_module, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    """Three started hosts; the tests of this module build on each other in order."""
    directory = tmp_path_factory.mktemp("grow")
    with cluster_hosts(directory, LoopbackNet.pick(), 3, AWC_EVEN_VOTERS_SECONDS="3") as hosts:
        yield hosts


def roles(host: ClusterHost) -> dict[str, str]:
    return {m["host"]: "learner" if m["learner"] else "voter" for m in ask_members(host)["members"]}


def shown(host: ClusterHost, *serials: str) -> bool:
    try:
        return set(serials) == set(cards_of(ask_cluster(host)))
    except CallError:
        return False


def leader_by(host: ClusterHost) -> str:
    """Who leads, as the host says; nobody while it does not answer."""
    try:
        return str(ask_cluster(host)["leader"])
    except CallError:
        return ""


def test_a_host_in_no_cluster_says_so(hosts: list[ClusterHost]) -> None:
    for command in (["get_cluster"], ["get_members"], ["remove_node", "-n", "host-2"]):
        outcome = run_cli("--host", hosts[0].api, *command)
        assert outcome.returncode == 1
        assert "in no cluster" in outcome.stderr
    outcome = run_cli("--host", hosts[1].api, "add_node", "-n", hosts[0].api)
    assert outcome.returncode == 1
    assert "in no cluster" in outcome.stderr


def test_one_host_is_a_cluster_that_tolerates_nothing(hosts: list[ClusterHost]) -> None:
    cli_json(hosts[0], "create_cluster", "--name", "kv-cache")
    assert ask_cluster(hosts[0])["etcd_quorum"] == {"members": 1, "tolerated_failures": 0}
    wait_until(lambda: shown(hosts[0], "L0P1"), "its card")
    refused = run_cli("--host", hosts[0].api, "remove_node", "-n", "host-1")
    assert refused.returncode == 1
    assert "last host" in refused.stderr


def test_the_second_host_stays_a_learner(hosts: list[ClusterHost]) -> None:
    cli_json(hosts[1], "add_node", "-n", hosts[0].api)
    wait_until(lambda: shown(hosts[1], "L0P1", "L0P2"), "both cards")
    cycles = len(hosts[0].running.events("cycle"))
    wait_until(lambda: len(hosts[0].running.events("cycle")) > cycles + 4, "the leader goes on")
    assert roles(hosts[0]) == {"host-1": "voter", "host-2": "learner"}
    document = ask_cluster(hosts[1])
    assert document["etcd_quorum"] == {"members": 1, "tolerated_failures": 0}
    assert document["etcd_learners"] == 1


def test_a_join_survives_a_killed_joiner(hosts: list[ClusterHost]) -> None:
    joiner = hosts[2]
    # Its etcd can't start at first: the join is between "accepted" and "runs" when the service is killed.
    wrapper = joiner.directory / "etcd-fast"
    good = wrapper.read_text()
    wrapper.write_text(good.replace("exec ", 'case "$*" in *--data-dir*) exit 1;; esac; exec '))
    with Program(
        python_module("clustercli.main", "--host", joiner.api, "add_node", "-n", hosts[0].api)
    ) as cli:
        wait_until(joiner.member_file.exists, "the join is accepted", 30.0)
        assert json.loads(joiner.member_file.read_text())["phase"] == "joining"
        joiner.running.kill()
        assert cli.wait_exit() == 3
    wrapper.write_text(good)
    joiner.start()
    wait_voters(hosts[0], 3)
    assert set(roles(hosts[0]).values()) == {"voter"}
    wait_until(lambda: shown(joiner, "L0P1", "L0P2", "L0P3"), "all cards")
    assert ask_cluster(joiner)["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}


def test_a_host_with_anothers_name_or_address_is_not_let_in(
    hosts: list[ClusterHost], tmp_path_factory: pytest.TempPathFactory
) -> None:
    members = ask_members(hosts[0])
    stranger = ClusterHost("host-2", hosts[0].address[:-1] + "9", tmp_path_factory.mktemp("stranger"))
    stranger.set_cards()
    stranger.configure()
    stranger.start()
    try:
        outcome = run_cli("--host", stranger.api, "add_node", "-n", hosts[0].api)
        assert outcome.returncode == 1
        assert "choose another AWC_HOST" in outcome.stderr
    finally:
        stranger.stop()
    assert ask_members(hosts[0])["members"] == members["members"]


def test_remove_node_takes_a_host_out_and_forgets_its_cards_when_asked(hosts: list[ClusterHost]) -> None:
    leaving = hosts[2]
    slots = {serial: card["slot"] for serial, card in cards_of(ask_cluster(hosts[0])).items()}
    answer = cli_json(hosts[0], "remove_node", "-n", leaving.name, "--forget-cards")
    assert answer == {"host": "host-3", "forgotten_serials": ["L0P3"]}
    leaving.running.wait_event("host left the cluster")
    document = ask_cluster(hosts[0])
    assert [host["enabled"] for host in document["hosts"]] == [1, 1, 0]
    assert set(cards_of(document)) == {"L0P1", "L0P2"}
    assert {serial: card["slot"] for serial, card in cards_of(document).items()}.items() <= slots.items()
    wait_until(lambda: "host-3" not in roles(hosts[0]), "it is no member")
    wait_until(lambda: not leaving.member_file.exists(), "it forgets what it was")


def test_add_node_on_a_removed_host_joins_it_again(hosts: list[ClusterHost]) -> None:
    cli_json(hosts[2], "add_node", "-n", hosts[1].api)
    wait_voters(hosts[0], 3)
    wait_until(lambda: shown(hosts[2], "L0P1", "L0P2", "L0P3"), "all cards")
    assert (hosts[2].data_dir / "member.previous").is_dir(), "the old data are kept once, aside"


def test_the_leaders_own_host_can_be_removed_through_itself(hosts: list[ClusterHost]) -> None:
    name = ask_cluster(hosts[0])["leader"]
    leader = next(host for host in hosts if host.name == name)
    other = next(host for host in hosts if host is not leader)
    assert cli_json(leader, "remove_node", "-n", leader.name)["forgotten_serials"] == []
    wait_until(lambda: leader_by(other) not in {"", leader.name}, "another leads", 60.0)
    wait_until(lambda: not leader.member_file.exists(), "the host has seen that it is out", 30.0)
    cli_json(leader, "add_node", "-n", other.api)
    wait_voters(other, 3)


def test_two_hosts_that_stay_come_to_one_voter_and_a_learner(hosts: list[ClusterHost]) -> None:
    wait_voters(hosts[0], 3)
    cli_json(hosts[0], "remove_node", "-n", hosts[2].name)
    wait_until(partial(_has_learner, hosts[0]), "one of them is a learner", 60.0)
    wait_voters(hosts[0], 1)
    for host in hosts[:2]:
        wait_until(partial(_tolerates_nothing, host), f"what {host.name} says of the quorum", 30.0)


def _has_learner(host: ClusterHost) -> bool:
    try:
        return sorted(roles(host).values()) == ["learner", "voter"]
    except CallError:
        return False


def _tolerates_nothing(host: ClusterHost) -> bool:
    try:
        return bool(ask_cluster(host)["etcd_quorum"] == {"members": 1, "tolerated_failures": 0})
    except CallError:
        return False


def test_a_machine_that_was_taken_out_joins_under_another_name(hosts: list[ClusterHost]) -> None:
    first, machine = hosts[0], hosts[2]
    wait_until(lambda: not machine.member_file.exists(), "the host has seen that it is out", 30.0)
    machine.running.stop()
    machine.configure(AWC_HOST="host-9")
    machine.start()
    cli_json(machine, "add_node", "-n", first.api)
    wait_voters(first, 3)
    assert set(roles(first)) == {"host-1", "host-2", "host-9"}
    assert cli_json(first, "remove_node", "-n", "host-3")["forgotten_serials"] == []
    assert set(roles(first)) == {"host-1", "host-2", "host-9"}, "its old name takes nothing with it"
