"""Cards and the slot plan as an operator gets them, from one snapshot."""

from __future__ import annotations

from controlplane.cluster.card_views import cards_response, listed_at, plan_response
from controlplane.cluster.membership_file import Membership
from controlplane.model.card_check import CardCheck
from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterSnapshot,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
)
from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.slots import fingerprint, plan_slots

PLACE = Membership("member", "h1", "http://127.0.0.1:2380", "u-1", "kv-cache", "")
REGISTRY = tuple(RegistryEntry(f"L0P{n}", f"nqn.{n}", "", n + 1) for n in range(9))


def record(number: int, host: str = "h1", state: str = "running") -> CardRecord:
    path = CardPath("tcp", "::1", "4420")
    return CardRecord(host, f"xdp{number}", f"L0P{number}", f"nqn.{number}", "", (path,), state)


def health(number: int, now: Health, last: Health, host: str = "h1") -> HealthRecord:
    return HealthRecord(host, f"xdp{number}", f"L0P{number}", now, last, 1.0, "because")


PICTURE = ClusterSnapshot(
    7,
    None,
    REGISTRY,
    (HostRecord("h1", True, False), HostRecord("h2", False, False)),
    (record(0), record(1), record(2), record(3, state="stopped"), record(4, "h2")),
    (
        health(0, Health.HEALTHY, Health.HEALTHY),
        health(1, Health.SICK, Health.SICK),
        health(2, Health.UNKNOWN, Health.SICK),
    ),
)


def test_the_plan_is_the_registrys_and_says_what_keeps_a_slot_from_routing() -> None:
    answer = plan_response(PLACE, PICTURE, 64)
    plan = plan_slots(REGISTRY)
    assert {slot.slot: slot.xdp_serial for slot in answer.slots} == dict(plan.slots)
    assert answer.fingerprint == fingerprint(LAYOUT_VERSION, 64, plan.slots)
    assert list(answer.surplus_serials) == ["L0P8"]
    shown = {slot.xdp_serial: slot for slot in answer.slots}
    assert (shown["L0P0"].routable, shown["L0P0"].reason) == (True, "")
    assert (shown["L0P1"].routable, shown["L0P1"].reason) == (False, "because")
    assert not shown["L0P2"].routable, "unknown keeps what it had: sick"
    assert shown["L0P3"].reason == "its host h1 says that it is stopped"
    assert shown["L0P4"].reason == "its host h2 is disabled"
    assert shown["L0P5"].reason == "no host lists it"


def test_cards_are_shown_with_their_checks_and_those_that_are_not_registered_last() -> None:
    checks = [
        CardCheck("h1", "xdp0", "L0P0", "nqn.0", "checked"),
        CardCheck("h1", "xdp1", "OTHER", "nqn.1", "mismatch", "why"),
        CardCheck("h1", "xdp9", "NEW", "nqn.9", "unchecked", "silent"),
        CardCheck("h2", "xdp8", "GONE", "nqn.8", "mismatch", "of a disabled host"),
    ]
    cards = {card.xdp_serial: card for card in cards_response(PLACE, PICTURE, checks).cards}
    assert list(cards)[:9] == [entry.serial for entry in REGISTRY]
    assert list(cards)[9:] == ["NEW", "OTHER"]
    assert (cards["L0P0"].join_seq, cards["L0P0"].places[0].check) == (1, "checked")
    assert cards["L0P0"].places[0].addresses == ["tcp:[::1]:4420"]
    assert cards["L0P1"].places[0].check == "unchecked", "the check is of another serial"
    assert cards["L0P4"].places[0].state == "disabled"
    assert cards["L0P8"].slot == -1
    (rejected,) = cards["OTHER"].places
    assert (rejected.in_use, rejected.check, rejected.check_text) == (False, "mismatch", "why")
    assert (cards["OTHER"].join_seq, cards["OTHER"].slot, cards["OTHER"].nqn) == (0, -1, "nqn.1")


def test_a_card_is_listed_at_enabled_hosts_only() -> None:
    assert listed_at(PICTURE, "L0P0") == ["h1 xdp0"]
    assert listed_at(PICTURE, "L0P4") == []
