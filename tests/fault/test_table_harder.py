"""Beyond the manual's table: suspended instead of killed, cut one way, everything at once, in turn."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.cluster_hosts import START_SECONDS
from tests.support.scene.checks import (
    OUT,
    LogMark,
    assert_one_writer,
    nothing_changes,
)
from tests.support.scene.marks import NEEDS_HOSTS
from tests.support.scene.scene import CLUSTER, Scene
from tests.support.scene.storage import StorageHost, running
from tests.support.scene.traffic import Traffic

pytestmark = list(NEEDS_HOSTS)
SECURE = True


@pytest.fixture(autouse=True)
def one_writer(scene: Scene) -> Iterator[None]:
    """Whatever a test does: at no time two hosts lead."""
    yield
    assert_one_writer(scene)


def others_than(scene: Scene, host: StorageHost) -> list[StorageHost]:
    return [other for other in scene.members if other is not host]


def wait_other_leader(scene: Scene, old: StorageHost) -> StorageHost:
    asked = others_than(scene, old)[0]
    return scene.wait(lambda: _leads(scene, asked, old), f"another leader than {old.name}")


def _leads(scene: Scene, asked: StorageHost, old: StorageHost) -> StorageHost | None:
    document = scene.console.cluster(asked)
    name = document["leader"] if document else ""
    return scene.hosts[name] if name and name != old.name else None


def test_the_leader_is_suspended(scene: Scene) -> None:
    """The cluster service alone: its etcd goes on, its lease ends."""
    leader = scene.leader()
    assert leader.service is not None
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        leader.suspend(leader.service.pid)
        wait_other_leader(scene, leader)
        traffic.one_pass()
        leader.resume()
        scene.wait_well()
        assert scene.leader() is not leader


def test_the_leader_is_suspended_with_its_etcd(scene: Scene) -> None:
    leader = scene.leader()
    assert leader.service is not None
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        leader.suspend(leader.service.pid, leader.wait_etcd())
        wait_other_leader(scene, leader)
        leader.resume()
        scene.wait_well()


def test_an_etcd_member_is_suspended(scene: Scene) -> None:
    host = scene.hosts["storage-1"]
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        host.suspend(host.wait_etcd())
        scene.wait(lambda: scene.console.cluster(scene.hosts["storage-2"]), "the others answer")
        for _ in range(3):
            traffic.one_pass()
        host.resume()
        scene.wait_well()


def test_a_card_is_suspended(scene: Scene) -> None:
    """It keeps its connections and answers nothing; its storage service counts as running."""
    host, whole = scene.hosts["storage-2"], scene.placement()
    pid = host.cards["L1P0"].pid
    with scene.traffic() as traffic:
        with traffic.shift(whole, whole.without("L1P0")) as departure:
            host.suspend(pid)
            departure.gone_now()
            scene.wait_in_use({"L0P0", "L2P0"})
        host.resume()
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, "L1P0")


def test_the_leader_is_cut_from_the_others_but_not_from_gateways(scene: Scene) -> None:
    leader = scene.leader()
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for other in others_than(scene, leader):
            scene.network.cut(leader.net, other.net)
        wait_other_leader(scene, leader)
        traffic.one_pass()
        scene.network.heal()
        scene.wait_well()


def test_the_leader_is_cut_from_the_gateways_but_not_from_the_others(scene: Scene) -> None:
    """The control path alone: gateways read through the other members, and the leader stays."""
    leader = scene.leader()
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for gateway in scene.gateways:
            scene.network.cut(leader.net, gateway.net, control_only=True)
        for _ in range(3):
            traffic.one_pass()
        scene.wait(lambda: all(map(scene.fresh, scene.gateways)), "every gateway reads the cluster")
        assert scene.leader() is leader


def test_a_gateway_alone_loses_a_healthy_card_that_it_can_not_reach(scene: Scene) -> None:
    """Cut from one gateway with its data path: that one loses the card, the other and the cluster don't."""
    host, (one, other) = scene.hosts["storage-2"], scene.gateways
    with scene.traffic() as traffic:
        mark = LogMark(scene)
        scene.network.cut(host.net, one.net)
        scene.wait(lambda: one.in_use() == {"L0P0", "L2P0"}, "the gateway that is cut off uses the others")
        traffic.one_pass()
        assert other.in_use() == scene.serials
        assert one.fingerprint() == other.fingerprint()
        scene.wait_health({"L1P0": 0})
        scene.network.heal()
        scene.wait_in_use(scene.serials)
        mark.assert_none(OUT)


@pytest.mark.parametrize("outgoing", [True, False], ids=["nothing leaves", "nothing arrives"])
def test_the_leader_is_cut_one_way(scene: Scene, outgoing: bool) -> None:
    leader = scene.leader()
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for other in others_than(scene, leader):
            ends = (leader.net, other.net) if outgoing else (other.net, leader.net)
            scene.network.cut_one_way(*ends)
        wait_other_leader(scene, leader)
        traffic.one_pass()
        scene.network.heal()
        scene.wait_well()


@pytest.mark.parametrize("days", [400, -400])
def test_clocks_jump(scene: Scene, days: int) -> None:
    """The leader's and a gateway's wall clock, by more than a certificate lasts: no new connection of theirs
    is taken, and the others go on. Back again, everything is as before.
    """
    leader, gateway = scene.leader(), scene.gateways[0]
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for victim in (leader, gateway):
            victim.clock.set(days * 86400.0)
        cycles = sum(len(host.logged("cycle")) for host in scene.members)
        scene.wait(
            lambda: sum(len(host.logged("cycle")) for host in scene.members) > cycles + 12,
            "the cluster goes on",
        )
        traffic.one_pass()
        assert gateway.control is not None
        gateway.control.kill()  # a new one has to connect anew
        gateway.start()
        traffic.one_pass()
        for victim in (leader, gateway):
            victim.clock.set(0)
        scene.wait_well()


def test_a_host_boots_with_a_wrong_clock(scene: Scene) -> None:
    """It can use no certificate, and waits for the right time instead of giving up."""
    host = scene.hosts["storage-2"]
    assert host.service is not None
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        host.service.stop()
        host.clock.set(-400 * 86400.0)
        host.begin().wait_event("not open to other hosts", START_SECONDS)
        assert running(host.service)
        host.clock.set(0)
        scene.wait_well()


def test_a_card_gets_sick_while_the_leaders_clock_is_wrong(scene: Scene) -> None:
    """Verdicts and polls count cycles and monotonic time: many cycles more or less change none of them.

    Certificates are valid from five minutes before they were made: further back the leader could take none of
    an exporter whose connection breaks meanwhile, and would say that its card is unknown.
    """
    leader, host = scene.leader(), scene.hosts["storage-2"]
    with scene.traffic() as traffic:
        leader.clock.set(-200.0)
        host.tell_sick("L1P0")
        scene.wait_in_use({"L0P0", "L2P0"})
        leader.clock.set(3600.0)
        host.tell_the_truth()
        scene.wait_in_use(scene.serials)
        traffic.one_pass()


def test_everything_is_killed_in_the_middle_of_writes(scene: Scene) -> None:
    """Hosts, cards and gateways; what was stored is there again, and nothing is wrong."""
    plan = scene.wait_same_plan()
    with scene.traffic() as traffic, scene.traffic(stored=False) as writing:
        writing.pump(lambda: all(stream.dialogs for stream in writing.streams), 30.0, "writes")
        kill_everything(scene)
        scene.start_hosts(scene.members)
        scene.start_gateways()
        both = Traffic([*traffic.streams, *writing.streams], traffic.rows)
        both.pump(lambda: scene.use(scene.serials), 60.0, "every gateway uses every card")
        scene.wait_well()
        both.wait_served()
        both.one_pass()
        with both.undisturbed():
            pass
    assert scene.wait_same_plan() == plan


def kill_everything(scene: Scene) -> None:
    programs = [program for host in scene.members for program in host.processes()]
    programs += [p for g in scene.gateways for p in (g.control, g.dataplane) if p is not None]
    for program in programs:
        os.kill(program.pid, signal.SIGKILL)
    for program in programs:
        program.kill()


def test_a_wiped_isolated_host_is_first_in_the_list(scene: Scene) -> None:
    """A cluster of its own by the same name, and it answers: no gateway believes it, also after a restart."""
    wiped, *others = scene.members
    assert wiped.service is not None
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        wiped.service.stop()
        wiped.wipe()
        for other in others:
            scene.network.cut(wiped.net, other.net)
        wiped.start()
        scene.console.cli(wiped, "create_cluster", "--name", CLUSTER).document()
        scene.wait(lambda: scene.console.cluster(wiped), "the wiped host serves a cluster of its own")
        for gateway in scene.gateways:
            assert gateway.control is not None
            gateway.control.kill()
            gateway.start()
            gateway.control.wait_event("Cluster host gives no members", 30.0)
        scene.wait(lambda: all(map(scene.fresh, scene.gateways)), "the gateways read our cluster")
        traffic.one_pass()
        wiped.service.stop()
        wiped.wipe()
        scene.network.heal()
        wiped.start()
        scene.add_node(wiped, others[0])
        scene.wait_well()


def test_every_process_is_restarted_in_turn(scene: Scene) -> None:
    with scene.traffic() as traffic:
        with nothing_changes(scene, traffic):
            for host in scene.members:
                for program in (host.exporter, host.service):
                    assert running(program)
                    assert program is not None
                    assert program.stop() == 0
                host.start_all()
                scene.wait_well()
            for gateway in scene.gateways:
                assert gateway.control is not None
                assert gateway.control.stop() == 0
                gateway.start()
        for host in scene.members:
            for serial, card in tuple(host.cards.items()):
                assert card.stop() == 0
                host.start_all()
                traffic.pump(lambda: scene.use(scene.serials), 60.0, f"{serial} is in use again")
        for gateway in scene.gateways:
            assert gateway.dataplane is not None
            assert gateway.dataplane.stop() == 0
            gateway.start()
        scene.wait_well()
        traffic.wait_served()
        traffic.one_pass()
        with nothing_changes(scene, traffic):
            pass
