"""Situations of a host's membership: stuck and moved hosts, damaged and old data, other clusters, full disks.

Each test ends with the cluster as it began: five hosts, of which the first three are joined.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clustercli.call import CallError
from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import (
    ClusterHost,
    ask_cluster,
    ask_members,
    card,
    cli_json,
    cluster_hosts,
    join_all,
    wait_voters,
)
from tests.support.procs import Program, python_module, suspend, wait_until

pytestmark = pytest.mark.slow

LEARNER_SECONDS = 8
SMALL_DISK_MEGABYTES = 150


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    directory = tmp_path_factory.mktemp("situations")
    with cluster_hosts(directory, LoopbackNet.pick(), 5, AWC_LEARNER_SECONDS=str(LEARNER_SECONDS)) as hosts:
        join_all(hosts[:3])
        yield hosts


@pytest.fixture
def hosts(five: list[ClusterHost]) -> list[ClusterHost]:
    """Five hosts, the first three in the cluster, all well; whatever the test before left is put right."""
    for host in five:
        if host.service is None or host.running.returncode is not None:
            host.start()
    for host in five[3:]:
        if host.member_file.exists():
            cli_json(five[0], "remove_node", "-n", host.name)
            host.running.wait_event("host left the cluster", 30.0)
    wait_voters(five[0], 3)
    for host in five[:3]:
        wait_until(host.etcd.has_leader, f"{host.name}'s etcd has a leader", 30.0)
    wait_until(lambda: document(five[0]).get("leader"), "a leader", 30.0)
    return five


def document(host: ClusterHost) -> dict[str, Any]:
    """get_cluster's document, empty when it is not answered."""
    with contextlib.suppress(CallError):
        return ask_cluster(host)
    return {}


def members(host: ClusterHost) -> dict[str, dict[str, Any]]:
    with contextlib.suppress(CallError):
        return {member["host"]: member for member in ask_members(host)["members"]}
    return {}


def member_id(asked: ClusterHost, host: ClusterHost) -> str:
    """The id of the host's member; empty when it has none."""
    return str(members(asked).get(host.name, {}).get("member_id", ""))


def wait_quorum(host: ClusterHost, size: int) -> dict[str, Any]:
    """Until the host shows a quorum of so many; its document."""
    quorum = {"members": size, "tolerated_failures": (size - 1) // 2}

    def probe() -> dict[str, Any] | None:
        shown = document(host)
        return shown if shown.get("etcd_quorum") == quorum else None

    return wait_until(probe, f"a quorum of {size}", 60.0, every=0.1)


def wait_replaced(asked: ClusterHost, host: ClusterHost, before: str) -> str:
    """Until the host has another member that is a voter among three; its id."""
    wait_until(lambda: member_id(asked, host) not in {"", before}, f"a new member of {host.name}", 60.0)
    wait_voters(asked, 3, 60.0)
    return member_id(asked, host)


def reasons(host: ClusterHost, since: int = 0) -> list[str]:
    """What the host said of its missing member."""
    return [str(event["reason"]) for event in host.running.events("no etcd member")[since:]]


def wait_reason(host: ClusterHost, text: str, seconds: float = 40.0) -> str:
    return str(
        host.running.wait_event("no etcd member", seconds, where=lambda e: text in e["reason"])["reason"]
    )


@contextlib.contextmanager
def broken_etcd(host: ClusterHost, says: str = "boom") -> Iterator[None]:
    """The host's etcd ends at once when it is to serve."""
    wrapper = host.directory / "etcd-fast"
    good = wrapper.read_text()
    bad = f'case "$*" in *--data-dir*) echo "{says}" >&2; exit 1;; esac; exec '
    wrapper.write_text(good.replace("exec ", bad))
    try:
        yield
    finally:
        wrapper.write_text(good)


def add_node_in_background(host: ClusterHost, via: ClusterHost) -> Program:
    return Program(python_module("clustercli.main", "--host", host.api, "add_node", "-n", via.api))


def test_a_learner_that_never_starts_is_given_up_told_and_blocks_no_one(hosts: list[ClusterHost]) -> None:
    stuck, next_one = hosts[3], hosts[4]
    with broken_etcd(stuck):
        with add_node_in_background(stuck, hosts[0]):
            wait_until(lambda: members(hosts[0]).get(stuck.name), "a learner that does not start", 30.0)
            cli_json(next_one, "add_node", "-n", hosts[0].api)
            wait_until(lambda: members(hosts[0]).get(next_one.name, {}).get("started"), "the next one is in")
        # On a slow machine others may be late too, and come back by themselves.
        told = wait_until(lambda: given_up(hosts[:3], stuck), "the learner is given up")
        assert "never started" in told[0]
        assert "was taken back" in wait_reason(stuck, "was taken back")
    wait_voters(hosts[0], 5, 60.0)
    wait_quorum(hosts[0], 5)


def test_a_join_goes_on_through_the_others_when_the_host_that_was_named_is_suspended(
    hosts: list[ClusterHost],
) -> None:
    """It leads too: until its lease has ended nobody lets anyone in."""
    newcomer = hosts[3]
    leader = next(host for host in hosts[:3] if host.name == document(hosts[0])["leader"])
    other = next(host for host in hosts[:3] if host is not leader)
    since = len(newcomer.running.events("add_node waits"))
    with add_node_in_background(newcomer, leader):
        wait_until(lambda: len(newcomer.running.events("add_node waits")) > since, "the join waits")
        leader.running.suspend()
        try:
            wait_until(lambda: members(other).get(newcomer.name, {}).get("started"), "it is in", 60.0)
        finally:
            leader.running.resume()


def given_up(hosts: list[ClusterHost], learner: ClusterHost) -> list[str]:
    """Why the hosts gave a learner up."""
    events = [event for host in hosts for event in host.running.events("learner given up")]
    return [event["reason"] for event in events if event["host"] == learner.name]


def test_two_silent_members_of_five_are_removed_after_their_strikes_and_come_back(
    hosts: list[ClusterHost],
) -> None:
    for host in hosts[3:]:
        cli_json(host, "add_node", "-n", hosts[0].api)
    wait_voters(hosts[0], 5, 60.0)
    for host in hosts[3:]:
        host.running.kill()
    wait_voters(hosts[0], 3, 60.0)
    shown = wait_quorum(hosts[0], 3)
    assert [host["enabled"] for host in shown["hosts"]] == [1] * 5, "they are still wanted"
    for host in hosts[3:]:
        host.start()
    wait_voters(hosts[0], 5, 90.0)


def test_a_host_whose_peer_address_changed_gets_a_new_member(hosts: list[ClusterHost]) -> None:
    moved = hosts[1]
    before = member_id(hosts[0], moved)
    moved.running.stop()
    moved.configure(AWC_ETCD_PEER_PORT="2390", AWC_LEARNER_SECONDS=str(LEARNER_SECONDS))
    moved.start()
    wait_replaced(hosts[0], moved, before)
    assert members(hosts[0])[moved.name]["peer_urls"] == [f"http://{moved.address}:2390"]
    assert "changed from" in reasons(moved)[0]

    def written() -> bool:
        hosts_shown = document(hosts[0]).get("hosts", [])
        addresses = {host["host"]: host["addresses"]["etcd_peer"] for host in hosts_shown}
        return str(addresses.get(moved.name)).endswith(":2390")

    wait_until(written, "the host writes its new address down")


def test_damaged_data_are_replaced_and_never_served(hosts: list[ClusterHost]) -> None:
    host = hosts[2]
    before = member_id(hosts[0], host)
    host.running.kill()
    for log in (host.data_dir / "member" / "wal").glob("*.wal"):
        with log.open("r+b") as file:  # behind the ids, which are read before a start
            file.seek(300)
            file.write(bytes(1 << 20))
    host.start()
    wait_reason(host, "its data can't be used")
    wait_replaced(hosts[0], host, before)


def test_a_host_that_comes_back_with_an_old_data_directory_starts_clean(hosts: list[ClusterHost]) -> None:
    host = hosts[2]
    before = member_id(hosts[0], host)
    host.running.stop()
    shutil.copytree(host.data_dir, host.directory / "old")
    host.start()
    wait_until(host.etcd.has_leader, "it is back", 30.0)
    cli_json(hosts[0], "remove_node", "-n", host.name)
    host.running.wait_event("host left the cluster", 30.0)
    host.running.stop()
    shutil.rmtree(host.data_dir)
    (host.directory / "old").rename(host.data_dir)
    host.start()
    assert not host.member_file.exists()
    cli_json(host, "add_node", "-n", hosts[0].api)
    wait_replaced(hosts[0], host, before)
    host.running.wait_event("etcd data set aside")


def test_a_host_that_was_installed_anew_takes_the_place_it_had(hosts: list[ClusterHost]) -> None:
    host = hosts[2]
    before = member_id(hosts[0], host)
    host.running.kill()
    forget(host)
    host.start()
    cli_json(host, "add_node", "-n", hosts[0].api)
    wait_replaced(hosts[0], host, before)


def test_a_member_that_was_removed_while_it_was_suspended_is_given_up_by_its_service(
    hosts: list[ClusterHost],
) -> None:
    host = hosts[2]
    pid = host.etcd_pid()
    suspend(pid)  # it hears of nothing; its service has to find out
    try:
        cli_json(hosts[0], "remove_node", "-n", host.name)
        host.running.wait_event("host left the cluster", 40.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_reason(host, "was removed from the cluster")
    cli_json(host, "add_node", "-n", hosts[0].api)


def test_an_etcd_that_ends_again_and_again_is_told_once_and_serves_when_it_can(
    hosts: list[ClusterHost],
) -> None:
    host = hosts[1]
    since = len(host.running.events("no etcd member"))
    starts = len(host.running.events("etcd started"))
    with broken_etcd(host, "no such luck"):
        host.kill_etcd()
        wait_until(lambda: len(host.running.events("etcd started")) >= starts + 5, "five tries", 40.0)
    wait_until(host.etcd.has_leader, "it serves again", 40.0)
    said = reasons(host, since)
    assert [reason for reason in said if "no such luck" in reason] == ["etcd ended with code 1: no such luck"]
    assert len(said) <= 2, "the kill, and what came after it"


def test_a_changed_host_name_is_refused_with_the_way_back(hosts: list[ClusterHost]) -> None:
    host = hosts[1]
    host.running.stop()
    arguments = ("--config-dir", str(host.directory / "config"))
    environment = {**os.environ, "AWC_HOST": "renamed"}
    outcome = subprocess.run(
        python_module("controlplane.apps.awide_cluster", *arguments),
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 2
    assert "set AWC_HOST back, or run remove_node -n host-2 first" in outcome.stderr
    host.start()


def test_a_host_of_another_cluster_gives_no_place_and_is_written_nothing(hosts: list[ClusterHost]) -> None:
    first, second = hosts[3], hosts[4]
    cli_json(first, "create_cluster", "--name", "pair")
    cli_json(second, "add_node", "-n", first.api)
    wait_until(lambda: '"peers": []' not in second.member_file.read_text(), "it knows the other host", 30.0)
    try:
        first.running.stop()
        forget(first)
        first.start()
        cli_json(first, "create_cluster", "--name", "other")
        shutil.rmtree(second.data_dir)
        assert "it is in cluster other" in wait_reason(second, "it has no place to give")
        assert second.member_file.exists(), "it is still of its own cluster"
        shown = wait_until(lambda: document(first).get("hosts"), "its own cluster answers")
        assert [host["host"] for host in shown] == [first.name]
    finally:
        for host in (first, second):
            host.running.stop()
            forget(host)


def forget(host: ClusterHost) -> None:
    """The host was never in a cluster."""
    host.member_file.unlink(missing_ok=True)
    shutil.rmtree(host.data_dir, ignore_errors=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_under_etcd_costs_no_data_and_is_told(hosts: list[ClusterHost]) -> None:
    host = hosts[2]
    host.running.stop()
    with small_disk(host.data_dir):
        before = member_id(hosts[0], host)
        host.start()  # its data are gone with the mount: it gets a new member there
        present = wait_replaced(hosts[0], host, before)
        filler = host.data_dir / "filler"
        fill(filler)
        with changing_cards(hosts[0]):
            wait_reason(host, "free some space")
        wait_quorum(hosts[0], 3)  # the others go on
        filler.unlink()
        wait_until(host.etcd.has_leader, "it serves again", 40.0)
        assert member_id(hosts[0], host) == present, "with the data it had"
        assert not any("can't be used" in reason for reason in reasons(host))
        host.running.stop()
    host.start()  # with the data that were below the mount, which are those of a removed member
    wait_replaced(hosts[0], host, present)


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MEGABYTES}m,mode=700", "akv-test", directory],
        check=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


@contextlib.contextmanager
def changing_cards(host: ClusterHost) -> Iterator[None]:
    """The card CLI lists another port at each call, so that etcd has something to write."""
    counter = host.directory / "counter"
    count = f"n=$(( $(cat {counter} 2>/dev/null || echo 4420) % 60000 + 1 )); echo $n > {counter}"
    listed = json.dumps({"cards": [card(1)]}).replace("4420", "$n")
    host.set_cli(f"{count}\ncat <<END\n{listed}\nEND")
    try:
        yield
    finally:
        host.set_cards(card(1))
