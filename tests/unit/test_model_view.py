"""The gateway's view: what any sequence of answers and failures makes of the plan."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.gateway.messages import plan_to_message
from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    ClusterSnapshot,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
    UnreadableRecord,
)
from controlplane.model.debounce import PollLimits
from controlplane.model.plan import GatewayPlan, PlannedCard
from controlplane.model.routing import slot_for_dialog
from controlplane.model.slots import plan_slots
from controlplane.model.view import Decision, GatewayView
from dataplane.plans import check_plan

UUID = "8a7c1c1e-5a38-4cbd-8a70-000000000001"
OTHER = "8a7c1c1e-5a38-4cbd-8a70-000000000002"
LIMITS = PollLimits(sick_polls=3, absent_polls=3, interval=1.0)


@dataclass
class Card:
    """One card of the test cluster: alone on its host, as the records tell of it."""

    serial: str
    join_seq: int
    health: Health | None = Health.HEALTHY
    listed: bool = True
    port: int = 4420
    device: str = "xdp0"
    enabled: bool = True
    health_serial: str | None = None

    @property
    def host(self) -> str:
        return f"host-{self.serial}"

    @property
    def nqn(self) -> str:
        return f"nqn.2024-01.test:{self.serial}"

    def record(self) -> CardRecord:
        path = CardPath("tcp", "127.0.0.9", str(self.port))
        return CardRecord(self.host, self.device, self.serial, self.nqn, "", (path,))

    def health_record(self) -> HealthRecord:
        health = self.health if self.health is not None else Health.UNKNOWN
        serial = self.health_serial or self.serial
        return HealthRecord(self.host, self.device, serial, health, Health.UNKNOWN, 0.0, "test")


@dataclass
class World:
    """A cluster, its view and a clock; each read is one revision."""

    cards: list[Card]
    view: GatewayView = field(default_factory=lambda: GatewayView(LIMITS, 128))
    revision: int = 10
    now: float = 1000.0

    @classmethod
    def of(cls, count: int) -> World:
        return cls([Card(f"L0P{number}", number) for number in range(count)])

    def snapshot(self, **changes: object) -> ClusterSnapshot:
        self.revision += 1
        snapshot = ClusterSnapshot(
            self.revision,
            ClusterConfig("test", 0.0, UUID),
            tuple(RegistryEntry(c.serial, c.nqn, "", c.join_seq) for c in self.cards),
            tuple(HostRecord(c.host, c.enabled, False) for c in self.cards),
            tuple(c.record() for c in self.cards if c.listed),
            tuple(c.health_record() for c in self.cards if c.health is not None and c.listed),
        )
        return replace(snapshot, **changes)  # type: ignore[arg-type]

    def poll(self, **changes: object) -> Decision:
        self.now += LIMITS.interval
        return self.view.observe(self.snapshot(**changes), self.now, True)

    def early_read(self, **changes: object) -> Decision:
        self.now += 0.01
        return self.view.observe(self.snapshot(**changes), self.now, False)

    @property
    def plan(self) -> GatewayPlan:
        assert self.view.plan is not None
        return self.view.plan

    def planned(self, card: Card) -> PlannedCard:
        return next(planned for planned in self.plan.cards if planned.serial == card.serial)


def texts(decisions: Iterable[Decision]) -> list[str]:
    return [event.text for decision in decisions for event in decision.events]


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


def test_a_registry_record_that_cannot_be_read_is_no_forget() -> None:
    world = World.of(3)
    world.poll()
    before = world.plan
    hidden = UnreadableRecord("registry", name="L0P2")
    registry = world.snapshot().registry[:2]
    decisions = [
        world.poll(registry=registry, unreadable=(hidden,), problems=("bad record",)) for _ in range(5)
    ]
    assert world.plan == before
    assert texts(decisions) == ["Cluster problem"]


def test_a_card_record_that_cannot_be_read_is_not_absent() -> None:
    world = World.of(2)
    world.poll()
    world.cards[1].listed = False
    unreadable = (UnreadableRecord("card", world.cards[1].host, "xdp0"),)
    for _ in range(5):
        world.poll(unreadable=unreadable)
    assert len(world.plan.routable) == 2
    for _ in range(3):
        world.poll(unreadable=(UnreadableRecord("card", "elsewhere", "xdp0"),))
    assert len(world.plan.routable) == 1


def test_a_node_record_that_cannot_be_read_keeps_the_host_as_it_was() -> None:
    world = World.of(1)
    world.cards[0].enabled = False
    world.poll()
    hidden = {"hosts": (), "unreadable": (UnreadableRecord("node", world.cards[0].host),)}
    world.poll(**hidden)
    assert not world.plan.routable


def test_a_ninth_card_is_an_error_that_is_told_once() -> None:
    world = World.of(9)
    decisions = [world.poll(), world.poll()]
    ninth = [event for event in decisions[0].events if event.text == "Cluster problem"]
    assert [event.level for event in ninth] == ["error"]
    assert "L0P8" in str(ninth[0].fields["problem"])
    assert texts(decisions[1:]) == []
    assert world.view.surplus == ("L0P8",)
    assert len(world.plan.cards) == 8


def test_one_serial_at_two_places_is_a_problem_and_the_first_stays() -> None:
    world = World.of(1)
    world.poll()
    twin = replace(world.cards[0].record(), host="a-host", paths=(CardPath("tcp", "127.0.0.8", "4420"),))
    before = world.plan
    decision = world.poll(cards=(twin, world.cards[0].record()))
    assert texts([decision]) == ["Cluster problem"]
    assert world.plan == before
    assert texts([world.poll()]) == ["Cluster problem solved"]


def test_a_serial_under_another_nqn_is_a_problem_and_not_connected() -> None:
    world = World.of(1)
    world.poll()
    before = world.plan
    foreign = replace(world.cards[0].record(), host="a-host", nqn="nqn.2024-01.test:thief")
    assert texts([world.poll(cards=(foreign, world.cards[0].record()))]) == ["Cluster problem"]
    assert world.plan == before
    for _ in range(3):
        world.poll(cards=(foreign,))
    assert world.planned(world.cards[0]).reason == "absent"


def test_a_card_moved_from_a_disabled_host_is_found_on_the_other() -> None:
    world = World.of(1)
    world.poll()
    moved = replace(world.cards[0].record(), host="new-host", paths=(CardPath("tcp", "127.0.0.8", "4420"),))
    world.cards[0].enabled = False
    assert "Cluster problem" not in texts([world.poll(cards=(world.cards[0].record(), moved))])
    assert world.planned(world.cards[0]).paths == moved.paths
    assert world.plan.routable


def _changed_identity(world: World, kind: str) -> Decision:
    if kind == "empty":
        return world.poll(config=None)
    if kind == "other":
        return world.poll(config=ClusterConfig("wiped", 0.0, OTHER), registry=(), cards=())
    return world.poll(revision=world.revision - 5, cards=())


@pytest.mark.parametrize("kind", ["empty", "other", "behind"])
def test_an_answer_of_another_cluster_is_stale_and_changes_nothing(kind: str) -> None:
    world = World.of(3)
    world.poll()
    before = world.plan
    decisions = [_changed_identity(world, kind) for _ in range(5)]
    assert texts(decisions) == ["Cluster stale"]
    assert all(decision.stale for decision in decisions)
    assert decisions[0].events[0].fields["fingerprint"] == before.fingerprint
    assert world.plan == before
    again = world.poll()
    assert texts([again]) == ["Cluster answered again"]
    assert world.plan == before


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


texts_near_serials = st.text(st.sampled_from("Ab1 /é\n"), max_size=22)
odd_entries = st.builds(
    RegistryEntry,
    texts_near_serials,
    st.sampled_from(["nqn.t:a", "nqn.", "nqn.a b", "iqn.a", "nqn." + "x" * 300]),
    st.sampled_from(["", "x", UUID, UUID.upper()]),
    st.integers(1, 20),
)
odd_paths = st.builds(
    CardPath,
    st.sampled_from(["tcp", "rdma"]),
    st.just("127.0.0.1"),
    st.sampled_from(["0", "1", "4420", "65536", "07"]),
)


@st.composite
def odd_snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    """Anything that the store may decode: right types, odd values."""
    registry = draw(st.lists(odd_entries, max_size=12, unique_by=lambda entry: entry.serial))
    cards = [
        CardRecord(
            "host",
            f"xdp{number}",
            entry.serial,
            entry.nqn,
            draw(st.sampled_from(["", "x", UUID])),
            tuple(draw(st.lists(odd_paths, max_size=20))),
        )
        for number, entry in enumerate(registry)
    ]
    return ClusterSnapshot(1, ClusterConfig("test", 0.0, UUID), tuple(registry), (), tuple(cards))


@given(odd_snapshots())
def test_whatever_is_in_the_records_the_dataplane_takes_the_plan(snapshot: ClusterSnapshot) -> None:
    view = GatewayView(LIMITS, 128)
    view.observe(snapshot, 0.0, True)
    assert view.plan is not None
    check_plan(plan_to_message(view.plan, 1))


def test_one_odd_record_is_shown_and_keeps_no_other_card_out() -> None:
    world = World.of(3)
    good = world.snapshot()
    odd = replace(good.cards[0], paths=(CardPath("tcp", "127.0.0.1", "0"),))
    decision = world.poll(cards=(odd, *good.cards[1:]))
    assert "Cluster problem" in texts([decision])
    assert len(world.plan.routable) == 2


def test_an_entry_that_turns_odd_keeps_its_card() -> None:
    world = World.of(2)
    world.poll()
    before = world.plan
    good = world.snapshot()
    for _ in range(5):
        world.poll(registry=(replace(good.registry[0], nqn="rubbish"), good.registry[1]))
    assert world.plan == before


@pytest.mark.parametrize("uuid", ["x", UUID.upper(), UUID.replace("-", "")])
def test_a_cluster_without_a_uuid_is_no_answer(uuid: str) -> None:
    world = World.of(1)
    assert world.poll(config=ClusterConfig("test", 0.0, uuid)).stale
