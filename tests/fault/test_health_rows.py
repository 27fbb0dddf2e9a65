"""Health through exporters and Prometheus: what is evidence makes a card sick, what is missing never does.

Two storage hosts with a card each and a witness, in network namespaces, each with its own real Prometheus;
and a gateway that uses the cards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.procs import Program
from tests.support.scene.console import cards_of
from tests.support.scene.marks import NEEDS_HOSTS
from tests.support.scene.scene import BRISK, Scene, empty_scene
from tests.support.scene.storage import CardSpec
from tests.support.scene.watched import WatchedHost

pytestmark = list(NEEDS_HOSTS)
HEALTHY, SICK, UNKNOWN = 0, 1, 2
VICTIM, OTHER = "L0P0", "L1P0"
WELL = {VICTIM: HEALTHY, OTHER: HEALTHY}


class Watched:
    """The scene, and its hosts by what they are to the tests."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.storage = self._add("storage-1", CardSpec("L0P0"))
        self.second = self._add("storage-2", CardSpec("L1P0"))
        self.witness = self._add("witness-1")
        scene.start_hosts(self.hosts)
        self._seen: dict[Program, int] = {}

    @property
    def hosts(self) -> list[WatchedHost]:
        return [self.storage, self.second, self.witness]

    def form(self) -> None:
        first, *others = self.hosts
        self.scene.create_cluster(first)
        for host in others:
            self.scene.join(host)
        self.scene.add_gateway("gpu-1")
        self.heal()

    def heal(self) -> None:
        """Undo what a test did, and wait until both cards are healthy."""
        self.scene.network.heal()
        for host in self.hosts:
            host.resume()
            host.answer_pings()
            host.tell_the_truth()
        self.scene.start_hosts(self.hosts)
        for host in self.hosts:
            host.start_prometheus()
        self.scene.wait_health(WELL)
        self.scene.wait_in_use({VICTIM, OTHER})
        self._seen = {host.running: len(host.running.events()) for host in self.hosts}

    def leader(self) -> WatchedHost:
        found = self.scene.leader()
        assert isinstance(found, WatchedHost)
        return found

    def follower(self) -> WatchedHost:
        """A storage host that does not lead."""
        leader = self.leader()
        return next(host for host in (self.storage, self.second) if host is not leader)

    def said(self, event: str) -> list[dict[str, Any]]:
        """What the hosts logged under that name since the test began."""
        logs = [host.running.events()[self._seen.get(host.running, 0) :] for host in self.hosts]
        return [found for log in logs for found in log if found.get("event") == event]

    def sickened(self) -> set[str]:
        """Serials of the cards that a leader wrote as sick since the test began.

        Unknown may come at any time on a loaded machine, when two scrapes in a row take too long.
        """
        return {event["serial"] for event in self.said("health") if event["health_xdp"] == "sick"}

    def wait_said(self, event: str, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Until a host has logged such an event."""
        return self.scene.wait(lambda: next(filter(right, self.said(event)), None), f"event {event}")

    def wait_cycles(self, count: int) -> None:
        """Until the host that leads has led that many more cycles."""
        leader = self.leader().running
        before = len(leader.events("cycle"))
        self.scene.wait(lambda: len(leader.events("cycle")) >= before + count, f"{count} cycles")

    def _add(self, name: str, *specs: CardSpec) -> WatchedHost:
        net = self.scene.network.add(name)
        host = WatchedHost.of(net, self.scene.directory / name, *specs, witness=not specs)
        assert isinstance(host, WatchedHost)
        self.scene.hosts[name] = host
        host.configure(**BRISK.settings())
        return host


@pytest.fixture(scope="module")
def shared_watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with empty_scene(tmp_path_factory.mktemp("health")) as scene:
        watched = Watched(scene)
        watched.form()
        yield watched


@pytest.fixture
def watched(shared_watched: Watched) -> Watched:
    shared_watched.heal()
    return shared_watched


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def watches(host: WatchedHost, names: list[str]) -> bool:
    """Its Prometheus is told to ask the exporters for cards and for pings of just these hosts."""
    files = [host.monitoring_dir / "targets" / f"{name}.json" for name in ("cards", "ping")]
    return all([group["labels"]["host"] for group in read_json(file)] == names for file in files)


def test_every_host_watches_all_hosts_and_pings_the_others(watched: Watched) -> None:
    names = [host.name for host in watched.hosts]
    for host in watched.hosts:
        watched.scene.wait(partial(watches, host, names), f"{host.name} watches all hosts")
        pings = read_json(host.monitoring_dir / "ping-targets.json")
        assert pings["source"] == host.name
        assert {target["host"] for target in pings["targets"]} == {*names} - {host.name}
    sentence = watched.wait_said("cycle", lambda e: "2 cards: 2 healthy, none changed" in e["says"])
    assert sentence["says"].startswith("leading")


def test_a_card_that_is_killed_is_sick_and_healthy_when_it_is_back(watched: Watched) -> None:
    watched.storage.cards[VICTIM].kill()
    document = watched.scene.wait_health({VICTIM: SICK, OTHER: HEALTHY})
    assert "xdp_service_status 0" in cards_of(document)[VICTIM]["reason"]
    watched.storage.start_all()
    watched.scene.wait_health(WELL)
    assert watched.sickened() == {VICTIM}


def test_a_suspended_prometheus_makes_no_card_sick_though_one_dies_meanwhile(watched: Watched) -> None:
    leader = watched.leader()
    assert leader.prometheus is not None
    leader.suspend(leader.prometheus.pid)
    watched.storage.cards[VICTIM].kill()
    document = watched.scene.wait_health({VICTIM: UNKNOWN, OTHER: UNKNOWN})
    assert OTHER in watched.scene.gateways[0].in_use()
    assert "gave no answer" in cards_of(document)[VICTIM]["reason"]
    watched.wait_cycles(3)
    assert watched.sickened() == set()
    assert len(watched.said("metrics not read")) == 1
    leader.resume()
    watched.scene.wait_health({VICTIM: SICK, OTHER: HEALTHY})


@pytest.mark.parametrize("how", ["killed", "suspended"])
def test_an_exporter_that_is_gone_makes_its_card_unknown(watched: Watched, how: str) -> None:
    exporter = watched.storage.exporter
    assert exporter is not None
    if how == "killed":
        exporter.kill()
    else:
        watched.storage.suspend(exporter.pid)
    document = watched.scene.wait_health({VICTIM: UNKNOWN, OTHER: HEALTHY})
    assert "does not answer Prometheus" in cards_of(document)[VICTIM]["reason"]
    watched.wait_cycles(3)
    assert watched.sickened() == set()
    assert watched.scene.use({VICTIM, OTHER})


def test_loss_that_two_hosts_see_makes_a_card_sick(watched: Watched) -> None:
    watched.storage.drop_pings(watched.second.net, watched.witness.net)
    document = watched.scene.wait_health({VICTIM: SICK, OTHER: HEALTHY})
    assert "storage-2, witness-1 don't reach" in cards_of(document)[VICTIM]["reason"]
    watched.scene.wait_in_use({OTHER})
    watched.storage.answer_pings()
    watched.scene.wait_health(WELL)
    watched.scene.wait_in_use({VICTIM, OTHER})


def test_loss_that_one_host_sees_is_told_and_not_acted_on(watched: Watched) -> None:
    watched.storage.drop_pings(watched.second.net)
    told = watched.wait_said("packet loss not acted on", lambda e: e["subject"] == VICTIM)
    assert "storage-2" in told["reason"]
    watched.wait_cycles(4)
    assert watched.sickened() == set()


def test_a_host_that_is_cut_off_makes_nobodys_card_sick_but_its_own(watched: Watched) -> None:
    cut = watched.follower()
    (serial,) = cut.specs
    (other,) = {VICTIM, OTHER} - {serial}
    watched.scene.network.isolate(cut.net)
    document = watched.scene.wait_health({serial: SICK, other: HEALTHY})
    watched.wait_cycles(4)
    assert watched.sickened() == {serial}
    assert cards_of(document)[serial]["reason"].startswith("packet loss")


def test_a_witness_that_is_silent_is_told_once_and_changes_no_card(watched: Watched) -> None:
    assert watched.witness.exporter is not None
    watched.witness.exporter.kill()
    told = watched.wait_said("witness not seen", lambda e: e["subject"] == "witness-1")
    assert "does not answer Prometheus" in told["reason"]
    watched.wait_cycles(3)
    assert len(watched.said("witness not seen")) == 1
    assert watched.sickened() == set()
    watched.witness.start_all()
    watched.wait_said("witness not seen: over", lambda e: e["subject"] == "witness-1")


def test_every_part_of_the_monitoring_is_restarted_in_turn(watched: Watched) -> None:
    for host in watched.hosts:
        for program in (host.ping, host.exporter, host.prometheus):
            assert program is not None
            program.stop()
        watched.wait_cycles(1)
        host.start_all()
        host.start_prometheus()
    watched.scene.wait_health(WELL)
    assert watched.sickened() == set()
    assert watched.scene.use({VICTIM, OTHER})


def test_a_new_leader_without_metrics_makes_no_card_sick(watched: Watched) -> None:
    leader, victim = watched.leader(), watched.follower()
    (serial,) = victim.specs
    for host in watched.hosts:
        assert host.prometheus is not None
        host.prometheus.kill()
    victim.cards[serial].kill()
    assert leader.service is not None
    leader.service.stop()
    watched.scene.wait(lambda: watched.leader() is not leader, "another leader")
    watched.wait_cycles(BRISK.warmup_cycles + 4)
    assert watched.sickened() == set()
    watched.scene.wait_health({serial: UNKNOWN})
