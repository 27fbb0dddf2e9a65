"""What may happen to etcd and to cluster hosts, and must not take a card away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from controlplane.model.cards import Health
from tests.support.addresses import LoopbackNet
from tests.support.cluster_records import ClusterRecords
from tests.support.etcd import EtcdCluster, run_etcd
from tests.support.grpc_peers import ClusterHost, RecordingDataplane, serials
from tests.support.pod import Pod
from tests.support.procs import Program, wait_until


class Scene:
    """Two cluster hosts, the control process and the dataplane of one pod."""

    def __init__(self, directory: Path, net: LoopbackNet, etcd: EtcdCluster, stack: ExitStack) -> None:
        self.etcd = etcd
        self.records = ClusterRecords(etcd.members[0], str(uuid4()))
        self.records.create()
        for serial in ("L0P0", "L0P1", "L1P0"):
            self.records.join(serial)
        self.first = ClusterHost(net.host(101), self.records.uuid, etcd.endpoints)
        self.second = ClusterHost(net.host(102), self.records.uuid, etcd.endpoints)
        self.pod = Pod(directory, [self.first.entry, self.second.entry])
        self.dataplane = RecordingDataplane(self.pod.socket)
        for end in (self.first.stop, self.second.stop, self.dataplane.stop, self.pod.stop):
            stack.callback(end)

    def start(self) -> None:
        """Start the control process, until the dataplane has all three cards."""
        self.pod.start()
        self.dataplane.wait_plan(lambda plan: len(serials(plan)) == 3, "a plan of three cards")


@pytest.fixture
def scene(tmp_path: Path, loopback_net: LoopbackNet, etcd: EtcdCluster) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path / "pod", loopback_net, etcd, stack)


@pytest.fixture
def wide_scene(tmp_path: Path, loopback_net: LoopbackNet, etcd_cluster: EtcdCluster) -> Iterator[Scene]:
    """A scene with an etcd cluster of its own, three members, to be harmed."""
    with ExitStack() as stack:
        yield Scene(tmp_path / "pod", loopback_net, etcd_cluster, stack)


def test_with_every_member_suspended_nothing_changes(wide_scene: Scene) -> None:
    wide_scene.start()
    applied = len(wide_scene.dataplane.applied)
    for member in wide_scene.etcd.members:
        member.running.suspend()
    stale = wide_scene.pod.running.wait_event("Cluster stale")
    assert stale["fingerprint"] == wide_scene.dataplane.applied[-1].fingerprint
    wide_scene.pod.wait_status("xkv_gateway_cluster_answered", 0)
    asked = wide_scene.first.asked
    wait_until(lambda: wide_scene.first.asked >= asked + 2, "several polls went by")
    assert len(wide_scene.dataplane.applied) == applied
    wide_scene.pod.wait_status("xkv_gateway_storage_groups_active", 3)
    for member in wide_scene.etcd.members:
        member.running.resume()
    wide_scene.pod.running.wait_event("Cluster answered again")
    assert_told_in_turn(wide_scene.pod.running)
    assert len(wide_scene.dataplane.applied) == applied


def assert_told_in_turn(program: Program) -> None:
    """That the cluster does not answer is told once each time, however many polls find it so."""
    told = [e["event"] for e in program.events() if e["event"] in {"Cluster stale", "Cluster answered again"}]
    assert told == ["Cluster stale", "Cluster answered again"] * (len(told) // 2)


def test_one_suspended_member_is_not_noticed(wide_scene: Scene) -> None:
    wide_scene.start()
    wide_scene.etcd.leader().running.suspend()
    card = wide_scene.records.cards["L0P0"]
    wide_scene.records.member = wide_scene.etcd.leader()
    wide_scene.records.health(card, Health.SICK)
    wide_scene.dataplane.wait_plan(lambda plan: "L0P0" not in serials(plan), "the sick card is out")


def test_a_wiped_first_host_is_stale_and_the_next_host_is_asked(scene: Scene, tmp_path: Path) -> None:
    """The first host lost its data and runs as a cluster of its own under another uuid."""
    scene.start()
    scene.pod.stop()
    applied = len(scene.dataplane.applied)
    with run_etcd(tmp_path / "wiped") as wiped:
        other = ClusterRecords(wiped.members[0], str(uuid4()))
        other.create()
        scene.first.uuid, scene.first.endpoints = other.uuid, wiped.endpoints
        _expect_stale_and_again(scene, other.uuid)
    assert len(scene.dataplane.applied) == applied


def test_a_first_host_with_an_empty_etcd_is_stale_and_the_next_is_asked(scene: Scene, tmp_path: Path) -> None:
    """The first host still names our cluster, but its etcd is a new and empty one."""
    scene.start()
    scene.pod.stop()
    applied = len(scene.dataplane.applied)
    with run_etcd(tmp_path / "empty") as empty:
        scene.first.endpoints = empty.endpoints
        _expect_stale_and_again(scene, "no readable cluster configuration")
    assert len(scene.dataplane.applied) == applied


def test_one_wiped_member_among_good_ones_takes_no_card_away(scene: Scene, tmp_path: Path) -> None:
    with run_etcd(tmp_path / "wiped") as wiped:
        endpoints = [*wiped.endpoints, *scene.etcd.endpoints]
        scene.first.endpoints = scene.second.endpoints = endpoints
        scene.start()
        scene.pod.running.wait_event("Cluster answered again")
        scene.records.health(scene.records.cards["L0P0"], Health.SICK)
        scene.dataplane.wait_plan(lambda plan: "L0P0" not in serials(plan), "the good members are read")


def _expect_stale_and_again(scene: Scene, why: str) -> None:
    """Start again: the first host is refused, the second serves, and both are told in this order."""
    program = scene.pod.start()
    assert why in program.wait_event("Cluster stale")["why"]
    program.wait_event("Cluster answered again")
    names = [event["event"] for event in program.events()]
    assert names.index("Cluster stale") < names.index("Cluster answered again")
    scene.pod.wait_status("xkv_gateway_cluster_answered", 1)
    scene.pod.wait_status("xkv_gateway_storage_groups_active", 3)


def test_moving_to_another_cluster_needs_the_explicit_setting(scene: Scene, tmp_path: Path) -> None:
    scene.start()
    scene.pod.stop()
    with run_etcd(tmp_path / "other") as other:
        records = ClusterRecords(other.members[0], str(uuid4()))
        records.create()
        records.join("X0P0")
        for host in (scene.first, scene.second):
            host.uuid, host.endpoints = records.uuid, other.endpoints
        program = scene.pod.start()
        program.wait_event("Cluster stale")
        assert scene.dataplane.plan is not None
        assert scene.dataplane.plan.cluster_uuid == scene.records.uuid
        scene.pod.stop()
        program = scene.pod.start(accept_cluster_uuid=records.uuid)
        plan = scene.dataplane.wait_plan(lambda plan: serials(plan) == {"X0P0"}, "the other cluster's card")
        assert plan.cluster_uuid == records.uuid
        assert program.wait_event("Cluster pinned")["cluster_uuid"] == records.uuid


def test_cluster_hosts_may_go_away_once_the_members_are_known(scene: Scene) -> None:
    scene.start()
    scene.first.stop()
    scene.second.stop()
    scene.records.health(scene.records.cards["L0P1"], Health.SICK)
    scene.dataplane.wait_plan(lambda plan: "L0P1" not in serials(plan), "the sick card is out")


def test_a_start_while_the_whole_cluster_is_away_keeps_the_dataplanes_plan(scene: Scene) -> None:
    scene.start()
    scene.pod.stop()
    plan = scene.dataplane.plan
    assert plan is not None
    scene.first.stop()
    scene.second.stop()
    program = scene.pod.start()
    assert program.wait_event("Cluster stale")["fingerprint"] == plan.fingerprint
    scene.pod.wait_status("xkv_gateway_plan_in_sync", 1)
    assert scene.dataplane.plan == plan
