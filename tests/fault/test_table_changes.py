"""The rows of the manual's "Cards in and out at run time": hosts and cards come and go under two gateways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from controlplane.apps.demo.requests import Placement
from controlplane.model.slots import match_slots
from tests.support.scene.checks import IN, MOVED, OUT, LogMark, nothing_changes
from tests.support.scene.console import cards_of
from tests.support.scene.gateway import Gateway
from tests.support.scene.marks import NEEDS_HOSTS
from tests.support.scene.scene import Scene
from tests.support.scene.storage import CardSpec, StorageHost

pytestmark = list(NEEDS_HOSTS)
SECURE = True
# How long a learner may be behind; long enough for one that joins on a busy machine.
HOST_SETTINGS = {"AWC_LEARNER_SECONDS": "5"}

SLOTS = 8
# More than a tenth of raft's log, so that a member that gets nothing of it does not count as caught up.
WRITES = 2000


@pytest.fixture
def guest(scene: Scene) -> Iterator[StorageHost]:
    """A fourth host without cards, running and in no cluster; afterwards it and its cards are forgotten."""
    host = scene.hosts.get("storage-4") or scene.add_host("storage-4")
    yield host
    if host in scene.members:
        scene.members.remove(host)
        answer = scene.console.cli(scene.members[0], "remove_node", "-n", host.name, "--forget-cards")
        assert answer.code == 0, answer.err
    host.remove_cards()


def newcomer(whole: Placement, *, moves: bool) -> str:
    """A serial number that, when it joins these cards, moves another card's slot, or none."""
    before = match_slots(list(whole.serials))
    for number in range(1000):
        serial = f"L3P{number}"
        after = match_slots([*whole.serials, serial])
        moved = any(after.get(slot) != card for slot, card in before.items())
        if moved == moves:
            return serial
    raise AssertionError("no such serial")


def slot_of(scene: Scene, serial: str) -> int | None:
    document = scene.ask()
    card = cards_of(document).get(serial) if document else None
    return int(card["slot"]) if card else None


def test_a_new_server_joins_with_a_card(scene: Scene, guest: StorageHost) -> None:
    """Every gateway puts the card in the slot that the model and clustercli name; nobody else moves."""
    whole = scene.placement()
    serial = newcomer(whole, moves=False)
    expected = whole.joined_by(serial)
    guest.start_card(CardSpec(serial))
    with scene.traffic() as traffic:
        mark = LogMark(scene)
        with traffic.shift(whole, expected):
            scene.join(guest)
            scene.wait_in_use(scene.serials)
        assert scene.wait_same_plan() == expected.fingerprint
        mark.assert_none(MOVED, OUT)
    slots = {gateway.placement().slots for gateway in scene.gateways}
    assert slots == {expected.slots}
    assert slot_of(scene, serial) in expected.slots
    scene.wait_well()


def test_a_new_card_displaces_another_on_every_gateway_alike(scene: Scene, guest: StorageHost) -> None:
    whole = scene.placement()
    serial = newcomer(whole, moves=True)
    expected = whole.joined_by(serial)
    scene.join(guest)
    with scene.traffic() as traffic:
        mark = LogMark(scene)
        with traffic.shift(whole, expected):
            guest.start_card(CardSpec(serial))
            moved = mark.wait_all(MOVED)
            scene.wait_in_use(scene.serials)
        assert scene.wait_same_plan() == expected.fingerprint
    assert len({str(event["moved"]) for event in moved}) == 1
    for gateway in scene.gateways:
        assert gateway.status()["xkv_gateway_cluster_slots_moved", ""] >= 1


def test_a_server_is_removed_and_added_again(scene: Scene) -> None:
    host, asked, whole = scene.hosts["storage-3"], scene.hosts["storage-1"], scene.placement()
    with scene.traffic() as traffic:
        mark = LogMark(scene)
        with traffic.shift(whole, whole.without("L2P0")):
            scene.console.cli(asked, "remove_node", "-n", host.name).document()
            out = mark.wait_all(OUT, "L2P0")
            scene.wait_in_use({"L0P0", "L1P0"})
        assert {event["reason"] for event in out} == {"host disabled"}
        document = scene.wait(lambda: scene.console.cluster(asked), "get_cluster answers")
        assert {h["host"]: h["enabled"] for h in document["hosts"]}[host.name] == 0
        assert scene.wait_same_plan() == whole.fingerprint, "a removed host's cards keep their slots"
        scene.add_node(host, asked)
        mark.wait_all(IN, "L2P0")
        scene.wait_in_use(scene.serials)
        traffic.expect_home(whole, "L2P0")
    scene.wait_well()


def given_up(scene: Scene, learner: str) -> str:
    """Why the leader gave the learner up; empty while it did not."""
    events = [event for host in scene.members for event in host.logged("learner given up")]
    return next((str(event["reason"]) for event in events if event["host"] == learner), "")


def member_of(scene: Scene, name: str) -> str:
    """The id of a host's etcd member, empty when it has none, as another host lists it."""
    document = scene.console.members(scene.members[0])
    members = document["members"] if document else []
    return next((str(member["member_id"]) for member in members if member["host"] == name), "")


def test_a_learner_that_never_catches_up_is_given_up_and_comes_back(scene: Scene, guest: StorageHost) -> None:
    """A fourth host is a learner. It runs and answers, but raft does not reach it; then it does again."""
    scene.join(guest)
    scene.wait_well()
    before = scene.wait(lambda: member_of(scene, guest.name), "the learner")
    with scene.traffic() as traffic, nothing_changes(scene, traffic):
        for other in scene.members:
            if other is not guest:
                scene.network.cut_raft(guest.net, other.net)
        scene.console.write_keys(scene.members[0], WRITES)
        told = scene.wait(lambda: given_up(scene, guest.name), "the leader gives it up")
        assert "did not catch up in the time allowed" in told
        scene.wait(lambda: not member_of(scene, guest.name), "it is no member")
        document = scene.wait(scene.ask, "get_cluster answers")
        assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
        assert {host["host"]: host["enabled"] for host in document["hosts"]}[guest.name] == 1
        scene.network.heal()
        scene.wait(lambda: member_of(scene, guest.name) not in {"", before}, "it joins again by itself")
        scene.wait_well()


def counts_one_without_slot(gateway: Gateway) -> bool:
    return gateway.status().get(("xkv_gateway_cluster_cards_without_slot", "")) == 1.0


def test_a_ninth_card_is_shown_and_not_used(scene: Scene, guest: StorageHost) -> None:
    known = len(scene.serials)
    scene.join(guest)
    for number in range(SLOTS - known):
        guest.start_card(CardSpec(f"L4P{number}", f"xdp{number}", 4420 + number))
    scene.wait_in_use(scene.serials)
    plan, mark = scene.wait_same_plan(), LogMark(scene)
    used = set(scene.serials)
    guest.start_card(CardSpec("L5P0", "xdp90", 4490))
    problems = mark.wait_all("Cluster problem")
    assert all("L5P0" in event["problem"] for event in problems)
    scene.wait(lambda: slot_of(scene, "L5P0") == -1, "clustercli shows that it has no slot")
    for gateway in scene.gateways:
        scene.wait(partial(counts_one_without_slot, gateway), "the status file counts it")
    assert scene.use(used)
    assert scene.wait_same_plan() == plan
    mark.assert_none(MOVED, OUT)
