"""The service over a torn membership file: it starts nothing, and says in one line what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.apps.awide_cluster import main
from controlplane.cluster.membership_file import Membership, MembershipFile
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_main
from tests.support.cluster_hosts import ClusterHost

pytestmark = pytest.mark.slow


@pytest.fixture
def host(tmp_path: Path, loopback_net: LoopbackNet) -> ClusterHost:
    """A host that was a member, with its file as the service wrote it."""
    host = ClusterHost("host-1", loopback_net.host(1), tmp_path / "host-1")
    host.set_cards()
    host.configure()
    peer = f"http://{host.address}:2380"
    place = Membership("member", "host-1", peer, "uuid", "kv-cache", f"host-1={peer}", 7, 8)
    MembershipFile(host.member_file.parent).save(place)
    return host


@pytest.mark.parametrize(
    "tear",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[: len(whole) // 2].ljust(len(whole), b"\0"),
        lambda whole: whole.replace(b'"member_id": 7', b'"member_id": 9'),
        lambda whole: b"\xff" * len(whole),
    ],
    ids=["empty", "half", "zeros", "another id", "garbage"],
)
def test_a_torn_membership_file_starts_nothing(host: ClusterHost, tear: Callable[[bytes], bytes]) -> None:
    host.member_file.write_bytes(tear(host.member_file.read_bytes()))
    outcome = run_main(main, "awide-cluster", "--config-dir", str(host.directory / "config"))
    assert outcome.returncode == 2, outcome.stdout
    said = [line for line in outcome.stderr.splitlines() if "member.json" in line]
    assert len(said) == 1
    assert "restore it, or remove it and run clustercli add_node" in said[0]
    assert not (host.directory / "log" / "etcd.out").exists(), "etcd was not started"
