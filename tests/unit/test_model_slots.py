"""Properties of slot plan and routing."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.model.cards import RegistryEntry
from controlplane.model.hashing import SLOTS, slot_weight
from controlplane.model.routing import affinity_index, dialog_id, slot_for_dialog
from controlplane.model.slots import SlotPlan, fingerprint, match_slots, moved_slots, plan_slots

serials = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"), min_size=1, max_size=20
)
card_sets = st.lists(serials, max_size=SLOTS, unique=True)
dialogs = st.integers(0, 2**64 - 1)


def entry(serial: str, join_seq: int) -> RegistryEntry:
    return RegistryEntry(serial, f"nqn.2024-01.test:{serial}", "", join_seq)


def chain_of_a_join(held: dict[int, str], newcomer: str) -> dict[int, str]:
    """Deferred acceptance: the newcomer asks slots in its own order; who loses a slot asks on."""
    slots = dict(held)
    homeless: str | None = newcomer
    while homeless is not None:
        order = sorted(range(SLOTS), key=lambda slot: -slot_weight(str(homeless), slot))
        wanted = next(
            slot
            for slot in order
            if slot not in slots or slot_weight(homeless, slot) > slot_weight(slots[slot], slot)
        )
        loser = slots.get(wanted)
        slots[wanted] = homeless
        homeless = loser
    return slots


def chain_of_a_forget(held: dict[int, str], leaver: str) -> dict[int, str]:
    """Vacancies: a free slot takes the card that wants it most; then that card's slot is free."""
    slots = {slot: serial for slot, serial in held.items() if serial != leaver}
    free = next(slot for slot, serial in held.items() if serial == leaver)
    while True:
        suitors = [
            (slot_weight(serial, free), slot)
            for slot, serial in slots.items()
            if slot_weight(serial, free) > slot_weight(serial, slot)
        ]
        if not suitors:
            return slots
        _, left = max(suitors)
        slots[free] = slots.pop(left)
        free = left


@given(st.lists(serials, max_size=12, unique=True), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_registry(names: list[str], rng: random.Random) -> None:
    registry = [entry(serial, seq) for seq, serial in enumerate(names)]
    shuffled = registry.copy()
    rng.shuffle(shuffled)
    assert plan_slots(shuffled) == plan_slots(registry)


@given(st.lists(serials, min_size=9, max_size=12, unique=True))
def test_the_eight_that_joined_first_take_part(names: list[str]) -> None:
    plan = plan_slots(entry(serial, seq) for seq, serial in enumerate(names))
    assert set(plan.slots.values()) == set(names[:SLOTS])
    assert plan.surplus == tuple(names[SLOTS:])


@given(card_sets.filter(lambda names: len(names) > 0))
def test_a_join_moves_exactly_the_chain_that_it_starts(names: list[str]) -> None:
    before = match_slots(names[:-1])
    assert match_slots(names) == dict(sorted(chain_of_a_join(before, names[-1]).items()))


@given(card_sets.filter(lambda names: len(names) > 0), st.data())
def test_a_forget_moves_exactly_the_chain_that_it_starts(names: list[str], data: st.DataObject) -> None:
    leaver = data.draw(st.sampled_from(names))
    remaining = [serial for serial in names if serial != leaver]
    assert match_slots(remaining) == dict(sorted(chain_of_a_forget(match_slots(names), leaver).items()))


@given(card_sets, st.data())
def test_moved_slots_names_the_cards_that_both_plans_have_elsewhere(
    names: list[str], data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    before, after = SlotPlan(match_slots(names)), SlotPlan(match_slots(kept))
    moved = moved_slots(before, after)
    assert set(moved) == {serial for serial in kept if before.slot_of(serial) != after.slot_of(serial)}


@given(st.sets(st.integers(0, 7), min_size=1), st.lists(dialogs, min_size=1, max_size=50), st.data())
def test_taking_a_slot_out_moves_only_its_own_dialogs(
    slots: set[int], ids: list[int], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(slots)))
    for dialog in ids:
        before = slot_for_dialog(dialog, slots)
        after = slot_for_dialog(dialog, slots - {gone})
        assert (after == before) == (before != gone)


@settings(max_examples=20)
@given(st.sets(st.integers(0, 7), min_size=1), st.integers(0, 2**32))
def test_dialogs_spread_evenly_over_any_set_of_cards(slots: set[int], seed: int) -> None:
    """Each card's share of random dialogs is within 5 sigma of a binomial's mean."""
    total, rng = 4000, random.Random(seed)
    counts = dict.fromkeys(slots, 0)
    for _ in range(total):
        slot = slot_for_dialog(rng.getrandbits(64), slots)
        assert slot is not None
        counts[slot] += 1
    share = 1 / len(slots)
    sigma = math.sqrt(total * share * (1 - share))
    assert all(abs(count - total * share) <= 5 * sigma for count in counts.values())


def test_small_consecutive_dialog_ids_spread_too() -> None:
    counts = [0] * 4
    for dialog in range(8000):
        slot = slot_for_dialog(dialog, range(4))
        assert slot is not None
        counts[slot] += 1
    assert all(abs(count - 2000) <= 5 * math.sqrt(8000 * 0.25 * 0.75) for count in counts)


@given(card_sets, st.integers(1, 2**32 - 1))
def test_the_fingerprint_tells_placements_apart(names: list[str], num_dbs: int) -> None:
    slots = match_slots(names)
    own = fingerprint(1, num_dbs, slots)
    assert fingerprint(1, num_dbs, dict(reversed(list(slots.items())))) == own
    assert fingerprint(1, num_dbs % (2**32 - 1) + 1, slots) != own
    assert fingerprint(2, num_dbs, slots) != own
    if slots:
        assert fingerprint(1, num_dbs, dict(list(slots.items())[1:])) != own


def test_without_a_routable_slot_there_is_no_route() -> None:
    assert slot_for_dialog(7, ()) is None


@pytest.mark.parametrize(("tokens", "index"), [(512, 1), (16, 63), (1024, 0), (4096, 0)])
def test_the_affinity_block_ends_1024_tokens(tokens: int, index: int) -> None:
    assert affinity_index(tokens) == index


@pytest.mark.parametrize("call", [lambda: affinity_index(0), lambda: dialog_id(b"short")])
def test_bad_arguments_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match="not"):
        call()  # type: ignore[operator]
