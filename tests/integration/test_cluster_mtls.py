"""Three hosts under mTLS: tokens, roles, and everyone who is refused, with real services and real etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import ClusterHost, ask_cluster, cluster_hosts, join_all

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterHost]]:
    with cluster_hosts(tmp_path_factory.mktemp("mtls"), LoopbackNet.pick(), 3, secure=True) as hosts:
        join_all(hosts)
        yield hosts


def test_three_hosts_are_a_quorum(hosts: list[ClusterHost]) -> None:
    for host in hosts:
        document = ask_cluster(host)
        assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
        assert [shown["host"] for shown in document["hosts"]] == ["host-1", "host-2", "host-3"]
