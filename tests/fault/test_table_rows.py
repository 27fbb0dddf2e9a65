"""The rows of the manual's table "What happens on a failure", each caused with real processes on three hosts.

Two gateways serve a replay all the while; what they and clustercli show is checked.
"""

from __future__ import annotations

from tests.support.scene.checks import (
    AGAIN,
    IN,
    OUT,
    STALE,
    LogMark,
    active_in_status,
    is_stale,
    logged_at,
    nothing_changes,
)
from tests.support.scene.console import cards_of
from tests.support.scene.gateway import SICK_POLLS
from tests.support.scene.marks import NEEDS_HOSTS
from tests.support.scene.scene import Scene
from tests.support.scene.storage import CardSpec, StorageHost
from tests.support.softcard import card_cli

pytestmark = list(NEEDS_HOSTS)
MONITORED = True

VICTIM = "L1P0"
OTHERS = {"L0P0", "L2P0"}


def member_ids(scene: Scene, asked: StorageHost) -> dict[str, str]:
    document = scene.wait(lambda: scene.console.members(asked), "get_members answers")
    return {member["host"]: member["member_id"] for member in document["members"]}


def test_etcd_does_not_answer(scene: Scene) -> None:
    with scene.traffic() as traffic, nothing_changes(scene, traffic) as mark:
        for host in scene.members:
            host.suspend(host.wait_etcd())
        mark.wait_all(STALE)
        traffic.one_pass()
        scene.wait(lambda: all(map(is_stale, scene.gateways)), "the status files say stale")
        refused = scene.console.cli(scene.members[0], "get_cluster", seconds=10.0)
        assert refused.code != 0
        assert "etcd" in refused.err
        remembered = scene.console.members(scene.members[0])
        assert remembered is not None
        assert len(remembered["members"]) == 3
        for host in scene.members:
            host.resume()
        mark.wait_all(AGAIN)


def test_the_quorum_is_lost_and_comes_back_with_the_same_members(scene: Scene) -> None:
    survivor, *gone = scene.members
    before = member_ids(scene, survivor)
    with scene.traffic() as traffic, nothing_changes(scene, traffic) as mark:
        for host in gone:
            assert host.service is not None
            host.service.kill()  # its etcd ends with it
        mark.wait_all(STALE)
        assert scene.console.cli(survivor, "get_cluster", seconds=10.0).code != 0
        traffic.one_pass()
        for host in gone:
            host.start()
        mark.wait_all(AGAIN)
        scene.wait_well()
    assert member_ids(scene, survivor) == before


def test_the_etcd_of_one_host_stops(scene: Scene) -> None:
    host = scene.hosts["storage-1"]
    before = member_ids(scene, host)
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        killed = host.kill_etcd()
        host.wait_etcd(other_than=killed)
        scene.wait_well()
    assert member_ids(scene, host) == before


def test_the_etcd_of_one_host_loses_its_data(scene: Scene) -> None:
    host, witness = scene.hosts["storage-1"], scene.hosts["storage-3"]
    before = member_ids(scene, witness)
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        host.lose_disk()
        scene.wait(
            lambda: member_ids(scene, witness).get(host.name) not in {None, before[host.name]},
            "another member in place of the lost one",
        )
        scene.wait_well()
    now = member_ids(scene, witness)
    assert {name for name in now if now[name] != before[name]} == {host.name}
    document = scene.ask()
    assert document is not None
    assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}


def test_the_leader_loses_its_card_metrics(scene: Scene) -> None:
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for host in scene.members:
            assert host.exporter is not None
            host.exporter.kill()
        scene.wait_health(dict.fromkeys(scene.serials, 2))
        traffic.one_pass()
        for host in scene.members:
            host.start_exporter()
        scene.wait_health(dict.fromkeys(scene.serials, 0))


def test_the_leaders_prometheus_is_suspended(scene: Scene) -> None:
    """It takes connections and answers nothing."""
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for watched in scene.watched():
            assert watched.prometheus is not None
            watched.suspend(watched.prometheus.pid)
        scene.wait_health(dict.fromkeys(scene.serials, 2))
        traffic.one_pass()
        for host in scene.members:
            host.resume()
        scene.wait_health(dict.fromkeys(scene.serials, 0))


def test_one_host_alone_loses_pings_of_another(scene: Scene) -> None:
    """One source is reported and not acted on."""
    one, two, _ = scene.watched()
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        two.drop_pings(one.net)
        scene.wait(
            lambda: _tells(scene, f"packet loss seen by {one.name} is not acted on"), "the leader tells"
        )
        traffic.one_pass()
        scene.wait_health({VICTIM: 0})


def _tells(scene: Scene, text: str) -> bool:
    """Some service has logged it."""
    services = [host.service for host in scene.members if host.service is not None]
    return any(text in line for service in services for line in tuple(service.lines))


def test_two_hosts_lose_the_pings_of_a_third(scene: Scene) -> None:
    """They reach each other and not the third: its card is sick, and back when they reach it."""
    one, two, three = scene.watched()
    whole = scene.placement()
    with scene.traffic() as traffic:
        with traffic.shift(whole, whole.without(VICTIM)):
            two.drop_pings(one.net, three.net)
            scene.wait_health({VICTIM: 1, "L0P0": 0, "L2P0": 0})
            scene.wait_in_use(OTHERS)
        two.answer_pings()
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, VICTIM)


def test_a_card_is_sick_and_is_healthy_again(scene: Scene) -> None:
    host, whole = scene.hosts["storage-2"], scene.placement()
    with scene.traffic() as traffic:
        mark = LogMark(scene)
        with traffic.shift(whole, whole.without(VICTIM)):
            host.tell_sick(VICTIM)
            card = cards_of(scene.wait_health({VICTIM: 1}))[VICTIM]
            out = mark.wait_all(OUT, VICTIM)
            scene.wait_in_use(OTHERS)
        assert "storage service" in card["reason"]
        for event in out:
            assert event["reason"] == "sick"
            assert logged_at(event) - card["since"] >= (SICK_POLLS - 1) * scene.pace.poll_ms / 1000
        scene.wait(
            lambda: all(active_in_status(g) == OTHERS for g in scene.gateways), "the status files say so"
        )
        host.tell_the_truth()
        mark.wait_all(IN, VICTIM)
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, VICTIM)
    assert scene.wait_same_plan() == whole.fingerprint


def test_a_card_comes_back_under_another_device_name(scene: Scene) -> None:
    """Its listener goes away, and it comes back as another device at another port, into its slot."""
    host, whole = scene.hosts["storage-2"], scene.placement()
    first = host.specs[VICTIM]
    try:
        with scene.traffic() as traffic:
            with traffic.shift(whole, whole.without(VICTIM)) as departure:
                host.cards[VICTIM].kill()
                departure.gone_now()
                scene.wait_in_use(OTHERS)
                scene.wait_health({VICTIM: 1})
            host.start_card(CardSpec(VICTIM, "xdp7", first.port + 1))
            scene.wait_in_use(scene.serials)
            traffic.expect_home(whole, VICTIM)
        assert scene.wait_same_plan() == whole.fingerprint
        document = scene.wait(scene.ask, "get_cluster answers")
        assert cards_of(document)[VICTIM]["device"] == "xdp7"
    finally:
        host.cards[VICTIM].stop()
        host.specs[VICTIM] = first


def test_a_card_disappears_from_etcd(scene: Scene) -> None:
    host, whole = scene.hosts["storage-2"], scene.placement()
    state = ("--state-dir", str(host.card_state), "--id", host.specs[VICTIM].device)

    def controllers() -> bool:
        return '"controllers":0' in card_cli("ctl", *state, "stats").stdout.replace(" ", "")

    with scene.traffic() as traffic:
        mark = LogMark(scene)
        with traffic.shift(whole, whole.without(VICTIM)):
            host.tell_nothing_of(VICTIM)
            out = mark.wait_all(OUT, VICTIM)
            scene.wait_in_use(OTHERS)
            scene.wait(controllers, "the gateways removed their controllers")
        assert {event["reason"] for event in out} == {"absent"}
        document = scene.ask()
        assert document is not None
        assert VICTIM not in cards_of(document)
        assert scene.wait_same_plan() == whole.fingerprint, "its slot stays its own"
        host.tell_the_truth()
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, VICTIM)


def test_a_storage_server_stops(scene: Scene) -> None:
    """All its processes at once; the others keep the quorum, and only its card's dialogs miss."""
    host, asked, whole = scene.hosts["storage-2"], scene.hosts["storage-1"], scene.placement()
    with scene.traffic() as traffic:
        with traffic.shift(whole, whole.without(VICTIM)) as departure:
            host.kill_all()
            departure.gone_now()
            scene.wait_in_use(OTHERS)
            scene.wait_health({VICTIM: 2, "L0P0": 0, "L2P0": 0}, asked)
        document = scene.console.cluster(asked)
        assert document is not None
        assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
        host.start_all()
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, VICTIM)


def test_a_storage_server_is_cut_off(scene: Scene) -> None:
    """No packet comes or goes: deadlines and the keep-alive take its card out, nothing was closed."""
    host, whole = scene.hosts["storage-2"], scene.placement()
    with scene.traffic() as traffic:
        with traffic.shift(whole, whole.without(VICTIM)) as departure:
            scene.network.isolate(host.net)
            departure.gone_now()
            scene.wait_in_use(OTHERS)
        scene.network.heal()
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, VICTIM)
