"""A cluster of one host: nobody can replace its member, so nothing is created in its place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli
from tests.support.cluster_hosts import ClusterHost, ask_members, cli_json, cluster_hosts
from tests.support.procs import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    with cluster_hosts(tmp_path_factory.mktemp("single"), LoopbackNet.pick(), 2) as hosts:
        cli_json(hosts[0], "create_cluster", "--name", "kv-cache")
        yield hosts


def wait_reason(host: ClusterHost, text: str) -> None:
    host.running.wait_event("no etcd member", 40.0, where=lambda event: text in event["reason"])


def test_a_changed_peer_address_is_told_with_the_way_back(pair: list[ClusterHost]) -> None:
    host = pair[0]
    before = ask_members(host)["members"]
    host.running.stop()
    host.configure(AWC_ETCD_PEER_PORT="2390")
    host.start()
    wait_reason(host, "set AWC_ADDRESS and AWC_ETCD_PEER_PORT back")
    host.running.stop()
    host.configure()
    host.start()
    wait_until(host.etcd.has_leader, "it serves again", 40.0)
    wait_until(lambda: ask_members(host)["members"] == before, "the members are as before")


def test_a_host_that_gives_another_hosts_peer_address_is_not_let_in(pair: list[ClusterHost]) -> None:
    first, stranger = pair
    stranger.running.stop()
    environment = {"AWC_ADDRESS": first.address, "AWC_API_PORT": "5001", "AWC_ETCD_CLIENT_PORT": "2399"}
    stranger.configure(**environment)
    stranger.start()
    outcome = run_cli("--host", f"{first.address}:5001", "add_node", "-n", first.api)
    assert outcome.returncode == 1
    assert "is that of host-1: correct AWC_ADDRESS or AWC_HOST" in outcome.stderr
    assert [member["host"] for member in ask_members(first)["members"]] == ["host-1"]


def test_lost_data_of_the_only_host_are_not_replaced_by_an_empty_cluster(pair: list[ClusterHost]) -> None:
    host = pair[0]
    shutil.rmtree(host.data_dir)
    wait_reason(host, "no other host can replace it: restore the data directory")
    starts = len(host.running.events("etcd started"))
    refused = run_cli("--host", host.api, "get_cluster")
    assert refused.returncode == 1
    assert len(host.running.events("etcd started")) == starts
    assert not list(Path(host.data_dir).glob("member/wal/*"))
    assert host.member_file.exists(), "what it was stays known"
