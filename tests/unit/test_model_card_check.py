"""From a card's answers to a verdict; what repeats is no event."""

from __future__ import annotations

from dataclasses import replace

from controlplane.model.card_check import Answer, judge_serial, judge_twin
from controlplane.model.cards import CardPath, CardRecord
from controlplane.model.events import EVENTS_KEPT, Note, Repeats

ONE, TWO = CardPath("tcp", "127.0.0.1", "4420"), CardPath("tcp", "127.0.0.2", "4420")
CARD = CardRecord("h1", "xdp0", "L0P0", "nqn.x", "", (ONE, TWO))
RIGHT, WRONG = Answer("L0P0", True, ("ns",)), Answer("HW1")
SILENT = Answer(error="connection refused")


def test_the_right_serial_at_every_address() -> None:
    judged = judge_serial(CARD, {ONE: RIGHT, TWO: RIGHT})
    assert (judged.check.state, judged.check.text, judged.usable) == ("checked", "", (ONE, TWO))


def test_an_address_that_is_silent_beside_a_right_one_stays() -> None:
    judged = judge_serial(CARD, {ONE: RIGHT, TWO: SILENT})
    assert (judged.check.state, judged.usable) == ("checked", (ONE, TWO))


def test_another_serial_everywhere_is_a_mismatch_with_the_remedy() -> None:
    judged = judge_serial(CARD, {ONE: WRONG, TWO: SILENT})
    assert (judged.check.state, judged.usable) == ("mismatch", ())
    assert "AWC_XDP_SERIALS=xdp0:HW1" in judged.check.text


def test_another_serial_at_one_address_takes_that_address_only() -> None:
    judged = judge_serial(CARD, {ONE: WRONG, TWO: RIGHT})
    assert (judged.check.state, judged.usable) == ("mismatch", (TWO,))
    assert "that address is not used" in judged.check.text


def test_silence_is_unchecked_and_says_why() -> None:
    judged = judge_serial(CARD, {ONE: SILENT, TWO: SILENT})
    assert (judged.check.state, judged.usable) == ("unchecked", (ONE, TWO))
    assert "connection refused" in judged.check.text
    assert "being asked" in judge_serial(CARD, {}).check.text
    assert "does not run" in judge_serial(replace(CARD, state="stopped"), {}).check.text
    assert "no address" in judge_serial(replace(CARD, paths=()), {}).check.text


def test_twins_are_one_card_only_if_the_subsystem_says_so() -> None:
    other = replace(CARD, host="h2", device="xdp3")
    assert judge_twin(CARD, RIGHT, other, RIGHT) == ""
    assert "h2 xdp3" in judge_twin(CARD, RIGHT, other, replace(RIGHT, namespaces=("other",)))
    assert "another card" in judge_twin(CARD, RIGHT, other, replace(RIGHT, multi_controller=False))
    assert judge_twin(CARD, RIGHT, other, None) == "", "a card that moved leaves a record without a card"
    assert judge_twin(CARD, RIGHT, other, SILENT) == judge_twin(CARD, None, other, RIGHT) == ""


def test_what_repeats_is_no_event() -> None:
    repeats = Repeats()
    sick, well = Note("health", "L0P0", "is sick", 1.0), Note("health", "L0P0", "is healthy", 2.0)
    assert [repeats.is_news(n) for n in (sick, sick, well, sick)] == [True, False, True, True]
    assert repeats.is_news(replace(sick, kind="alarm"))
    for number in range(EVENTS_KEPT):
        assert repeats.is_news(Note("card", f"C{number}", "x", 0.0))
    assert repeats.is_news(sick), "the memory is bounded"
