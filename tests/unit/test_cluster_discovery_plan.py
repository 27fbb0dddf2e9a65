"""Discovery, pure part: what a good answer of the card CLI changes in etcd, and what it never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controlplane.base.card_cli import ListedCard, ListedPath
from controlplane.cluster.discovery_plan import plan_cards, to_record
from controlplane.model.card_check import CardCheck, CheckState, Judgement
from controlplane.model.cards import CardPath, CardRecord, RegistryEntry

NQN = "nqn.2020-01.x:"
ZERO = CardRecord("h1", "xdp0", "L0P0", NQN + "0", "u0", (CardPath("tcp", "127.0.0.1", "4420"),))
ONE = replace(ZERO, device="xdp1", xdp_serial="L0P1", nqn=NQN + "1", uuid="u1")
KNOWN = [RegistryEntry("L0P0", NQN + "0", "u0", 1), RegistryEntry("L0P1", NQN + "1", "u1", 2)]


def test_the_override_wins_over_the_cli() -> None:
    listed = ListedCard("xdp0", "HW1", NQN + "0", "u0", "running", (ListedPath("tcp", "127.0.0.1", "4420"),))
    assert to_record("h1", listed, {"xdp0": "L0P0"}) == ZERO
    assert to_record("h1", listed, {}).xdp_serial == "HW1"


def test_nothing_is_written_when_nothing_changed() -> None:
    changes = plan_cards("h1", [ZERO, ONE], [ZERO, ONE], KNOWN)
    assert (changes.put, changes.gone, changes.register, changes.errors) == ((), (), (), ())


def test_a_new_card_is_registered_and_written() -> None:
    changes = plan_cards("h1", [ZERO, ONE], [ZERO], KNOWN[:1])
    assert (changes.put, changes.register) == ((ONE,), (ONE,))


def test_a_gone_device_is_removed_and_another_hosts_is_not() -> None:
    foreign = replace(ONE, host="h2")
    changes = plan_cards("h1", [], [ZERO, foreign], KNOWN)
    assert changes.gone == ("xdp0",)


def test_a_card_under_a_new_device_name_moves() -> None:
    moved = replace(ZERO, device="xdp7")
    changes = plan_cards("h1", [moved], [ZERO], KNOWN)
    assert (changes.put, changes.gone, changes.register) == ((moved,), ("xdp0",), ())


def test_a_stopped_card_stays_with_its_state() -> None:
    stopped = replace(ZERO, state="stopped", paths=())
    changes = plan_cards("h1", [stopped], [ZERO], KNOWN)
    assert (changes.put, changes.gone) == ((stopped,), ())


def test_the_running_one_of_two_with_one_serial_is_kept_and_the_other_is_an_error() -> None:
    twin = replace(ZERO, device="xdp9")
    changes = plan_cards("h1", [replace(ZERO, state="stopped"), twin], [], KNOWN)
    assert changes.put == (twin,)
    assert "both have serial L0P0" in changes.errors[0]


def test_a_registered_serial_with_another_identity_is_an_error_and_changes_nothing() -> None:
    impostor = replace(ZERO, nqn=NQN + "other")
    changes = plan_cards("h1", [impostor], [ZERO], KNOWN)
    assert (changes.put, changes.gone, changes.register) == ((), (), ())
    assert "another NQN" in changes.errors[0]


def test_an_unreadable_record_is_repaired_or_removed() -> None:
    assert plan_cards("h1", [ZERO], [], KNOWN, frozenset({"xdp0"})).put == (ZERO,)
    assert plan_cards("h1", [], [], KNOWN, frozenset({"xdp0"})).gone == ("xdp0",)


def judged(state: CheckState, usable: tuple[CardPath, ...] = ()) -> Callable[[CardRecord], Judgement]:
    def judge(record: CardRecord) -> Judgement:
        check = CardCheck(record.host, record.device, record.xdp_serial, record.nqn, state, "why")
        return Judgement(check, usable)

    return judge


def test_a_registered_nqn_with_another_serial_is_an_error_and_changes_nothing() -> None:
    wrong = replace(ZERO, xdp_serial="HW1")
    changes = plan_cards("h1", [wrong], [ZERO], KNOWN)
    assert (changes.put, changes.gone, changes.register) == ((), (), ())
    assert "clustercli cards forget L0P0" in changes.errors[0]
    assert changes.checks[0].state == "duplicate"


def test_a_contradicted_serial_is_not_written_and_one_that_is_written_is_withdrawn() -> None:
    changes = plan_cards("h1", [ZERO], [], [], judge=judged("mismatch"))
    assert (changes.put, changes.gone, changes.register) == ((), (), ())
    assert changes.errors == ("xdp0: why",)
    assert plan_cards("h1", [ZERO], [ZERO], KNOWN, judge=judged("mismatch")).gone == ("xdp0",)
    before = replace(ZERO, xdp_serial="OTHER", nqn="nqn.other")
    assert plan_cards("h1", [ZERO], [before], [], judge=judged("mismatch")).gone == ()


def test_an_address_where_another_card_answers_is_left_out() -> None:
    second = CardPath("tcp", "127.0.0.2", "4420")
    both = replace(ZERO, paths=(*ZERO.paths, second))
    changes = plan_cards("h1", [both], [], KNOWN, judge=judged("mismatch", (second,)))
    assert changes.put == (replace(ZERO, paths=(second,)),)


def test_a_silent_card_waits_unless_it_is_registered_or_has_waited_long() -> None:
    silent = judged("unchecked", ZERO.paths)
    new = plan_cards("h1", [ZERO], [], [], judge=silent, may_register=lambda _: False)
    assert (new.put, new.register, new.errors) == ((), (), ())
    known = plan_cards("h1", [ZERO], [], KNOWN, judge=silent, may_register=lambda _: False)
    assert known.put == (ZERO,)
    late = plan_cards("h1", [ZERO], [], [], judge=silent, may_register=lambda _: True)
    assert (late.put, late.register) == ((ZERO,), (ZERO,))


def test_a_proven_twin_is_written_only_where_it_was_first() -> None:
    late = plan_cards("h1", [ZERO], [], KNOWN, judge=judged("duplicate", ZERO.paths))
    assert (late.put, late.register) == ((), ())
    assert late.errors == ("xdp0: why",)
    first = plan_cards("h1", [ZERO], [ZERO], KNOWN, judge=judged("duplicate", ZERO.paths))
    assert (first.put, first.gone) == ((), ())
