"""The gateway's view: what any sequence of answers and failures makes of the plan."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.model.cards import (
    CardPath,
    Health,
    RegistryEntry,
)
from controlplane.model.routing import slot_for_dialog
from controlplane.model.slots import plan_slots
from controlplane.model.view import GatewayView
from tests.support.view_world import LIMITS, OTHER, UUID, Card, World, texts


def test_the_first_answer_gives_the_plan_of_the_registry() -> None:
    world = World.of(4)
    decision = world.poll()
    assert texts([decision]) == ["Cluster plan in use"]
    assert decision.events[0].fields["fingerprint"] == world.plan.fingerprint
    assert world.plan.slot_plan.slots == plan_slots(world.snapshot().registry).slots
    assert len(world.plan.routable) == 4
    assert world.view.cluster_uuid == UUID


def test_a_sick_card_leaves_after_three_polls_and_is_back_by_an_early_read() -> None:
    world = World.of(3)
    world.poll()
    world.cards[1].health = Health.SICK
    assert texts([world.poll(), world.poll()]) == []
    assert texts([world.poll()]) == ["Cluster card out of service"]
    assert not world.planned(world.cards[1]).routable
    assert world.planned(world.cards[1]).paths
    world.cards[1].health = Health.HEALTHY
    assert texts([world.early_read()]) == ["Cluster card in service"]
    assert len(world.plan.routable) == 3


def test_watch_events_do_not_hurry_a_verdict() -> None:
    world = World.of(2)
    world.poll()
    world.cards[0].health = Health.SICK
    world.cards[1].listed = False
    assert texts(world.early_read() for _ in range(20)) == []
    world.poll()
    world.poll()
    assert len(world.plan.routable) == 2
    world.poll()
    assert not world.plan.routable


def test_polls_faster_than_the_interval_do_not_hurry_a_verdict() -> None:
    world = World.of(1)
    world.poll()
    world.cards[0].health = Health.SICK
    for _ in range(25):
        world.now += 0.1
        world.view.observe(world.snapshot(), world.now, True)
    assert world.plan.routable
    world.now += 0.6
    world.view.observe(world.snapshot(), world.now, True)
    assert not world.plan.routable


def test_an_absent_card_keeps_its_slot_without_paths_and_comes_back_elsewhere() -> None:
    world = World.of(3)
    world.poll()
    slots = world.plan.slot_plan
    world.cards[2].listed = False
    for _ in range(3):
        world.poll()
    gone = world.planned(world.cards[2])
    assert (gone.routable, gone.reason, gone.paths) == (False, "absent", ())
    world.cards[2] = replace(world.cards[2], listed=True, port=4999, device="xdp7")
    world.early_read()
    back = world.planned(world.cards[2])
    assert back.routable
    assert back.paths == (CardPath("tcp", "127.0.0.9", "4999"),)
    assert world.plan.slot_plan == slots


def test_a_new_device_name_and_port_are_followed_at_once() -> None:
    world = World.of(2)
    world.poll()
    world.cards[0] = replace(world.cards[0], port=5001, device="xdp3", health=None)
    assert texts([world.early_read()]) == ["Cluster card has other paths"]
    assert len(world.plan.routable) == 2


def test_a_namespace_with_a_new_uuid_is_taken_as_its_host_reports_it() -> None:
    """Some targets make a new one at each start; the registry keeps that of the first sight."""
    world = World.of(1)
    world.poll()
    reborn = replace(world.cards[0].record(), uuid=OTHER)
    world.early_read(cards=(reborn,))
    assert world.planned(world.cards[0]).uuid == OTHER
    assert world.plan.routable


def test_health_of_another_serial_is_ignored() -> None:
    world = World.of(1)
    world.poll()
    world.cards[0] = replace(world.cards[0], health=Health.SICK, health_serial="L9P9")
    for _ in range(5):
        world.poll()
    assert world.plan.routable


def test_a_disabled_host_is_not_routed_to() -> None:
    world = World.of(2)
    world.poll()
    world.cards[0].enabled = False
    assert texts([world.poll()]) == ["Cluster card out of service"]
    assert world.planned(world.cards[0]).reason == "host disabled"


def test_a_join_that_moves_a_card_is_told_and_counted() -> None:
    """Take serials whose third card displaces one of the first two, found by search over plans."""
    for number in range(1000):
        names = [f"{letter}{number}" for letter in "ABC"]
        entries = [RegistryEntry(serial, "", "", seq) for seq, serial in enumerate(names)]
        before, after = plan_slots(entries[:2]), plan_slots(entries)
        if any(after.slot_of(serial) != before.slot_of(serial) for serial in names[:2]):
            break
    world = World([Card(names[0], 0), Card(names[1], 1)])
    world.poll()
    old = world.plan.fingerprint
    world.cards.append(Card(names[2], 2))
    decision = world.early_read()
    assert texts([decision]) == ["Cluster slot plan changed", "Cluster card joined"]
    assert decision.events[0].fields["previous_fingerprint"] == old
    assert decision.events[0].fields["fingerprint"] == world.plan.fingerprint != old
    assert world.view.slots_moved == 1


def test_a_join_into_a_free_slot_moves_nobody() -> None:
    world = World.of(0)
    world.poll()
    world.cards.append(Card("L0P0", 0))
    assert texts([world.early_read()]) == ["Cluster card joined"]
    assert world.view.slots_moved == 0


def test_a_forget_takes_effect_after_three_polls_alone() -> None:
    world = World.of(3)
    world.poll()
    card = world.cards.pop()
    assert texts([world.early_read(), world.poll(), world.poll()]) == []
    assert "Cluster card forgotten" in texts([world.poll()])
    assert card.serial not in world.plan.slot_plan.slots.values()


def test_a_ninth_card_is_an_error_that_is_told_once() -> None:
    world = World.of(9)
    decisions = [world.poll(), world.poll()]
    ninth = [event for event in decisions[0].events if event.text == "Cluster problem"]
    assert [event.level for event in ninth] == ["error"]
    assert "L0P8" in str(ninth[0].fields["problem"])
    assert texts(decisions[1:]) == []
    assert world.view.surplus == ("L0P8",)
    assert len(world.plan.cards) == 8


def test_a_card_moved_from_a_disabled_host_is_found_on_the_other() -> None:
    world = World.of(1)
    world.poll()
    moved = replace(world.cards[0].record(), host="new-host", paths=(CardPath("tcp", "127.0.0.8", "4420"),))
    world.cards[0].enabled = False
    assert "Cluster problem" not in texts([world.poll(cards=(world.cards[0].record(), moved))])
    assert world.planned(world.cards[0]).paths == moved.paths
    assert world.plan.routable


def test_failures_change_nothing_and_do_not_count() -> None:
    world = World.of(2)
    world.poll()
    world.cards[0].health = Health.SICK
    world.poll()
    world.poll()
    decisions = [world.view.failed("no answer within 0.5 s", world.now + number) for number in range(100)]
    assert texts(decisions) == ["Cluster stale"]
    assert len(world.plan.routable) == 2


def test_a_restarted_view_continues_from_the_plan() -> None:
    world = World.of(3)
    world.cards[2].health = Health.SICK
    world.poll()
    adopted = GatewayView(LIMITS, 128)
    adopted.adopt(world.plan)
    restarted = replace(world, view=adopted)
    world.cards[2].health = Health.UNKNOWN
    world.cards[0].health = Health.SICK
    decision = restarted.poll()
    assert not decision.changed
    assert restarted.plan == world.plan
    restarted.poll()
    restarted.poll()
    assert restarted.planned(world.cards[0]).reason == "sick"
    assert restarted.planned(world.cards[2]).reason == "sick"


def test_a_plan_of_another_cluster_is_no_history() -> None:
    world = World.of(1)
    world.poll()
    view = GatewayView(LIMITS, 128, OTHER)
    view.adopt(world.plan)
    assert view.plan is None
    assert view.observe(world.snapshot(), 0.0, True).stale


@dataclass(frozen=True)
class Step:
    card: int
    health: Health
    listed: bool
    failed: bool
    early: bool


steps = st.lists(
    st.builds(Step, st.integers(0, 3), st.sampled_from(Health), st.booleans(), st.booleans(), st.booleans()),
    max_size=40,
)


@settings(max_examples=50)
@given(steps, st.integers(0, 2**32))
def test_whatever_happens_to_cards_only_their_own_dialogs_move(history: list[Step], seed: int) -> None:
    world = World.of(4)
    world.poll()
    home = world.plan
    dialogs = [random.Random(seed + number).getrandbits(64) for number in range(40)]
    for step in history:
        world.cards[step.card].health = step.health
        world.cards[step.card].listed = step.listed
        if step.failed:
            world.view.failed("away", world.now)
        elif step.early:
            world.early_read()
        else:
            world.poll()
        assert world.plan.slot_plan == home.slot_plan
        assert world.plan.fingerprint == home.fingerprint
        for dialog in dialogs:
            before = slot_for_dialog(dialog, home.routable)
            if before in world.plan.routable:
                assert slot_for_dialog(dialog, world.plan.routable) == before
