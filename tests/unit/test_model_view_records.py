"""The gateway's view and records that are odd, unreadable, contradictory, or of another cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.messages import plan_to_message
from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    ClusterSnapshot,
    RegistryEntry,
    UnreadableRecord,
)
from controlplane.model.view import Decision, GatewayView
from dataplane.plans import check_plan
from tests.support.view_world import LIMITS, OTHER, UUID, World, texts


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
