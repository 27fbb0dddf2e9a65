"""The control process' parts without a process: messages, status text, state directory, members."""

from __future__ import annotations

import re
import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from akv.v1 import cluster_pb2, dataplane_pb2, plan_pb2
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.addresses import HostPort
from controlplane.base.text_file import write_atomically
from controlplane.gateway.members import MembersError, MemberSource, ask_members
from controlplane.gateway.messages import PlanError, plan_from_message, plan_to_message
from controlplane.gateway.state import StateDir, StateError
from controlplane.gateway.status import Picture, render
from controlplane.gateway.status_writer import EVERY_SECONDS, IDLE_SECONDS, QUIET_ANSWERS, Pace
from controlplane.model.cards import CardPath
from controlplane.model.plan import GatewayPlan, PlannedCard
from tests.support.addresses import LoopbackNet, free_port
from tests.support.gateway_plans import UUID, a_plan
from tests.support.grpc_peers import ClusterHost

ROOT = Path(__file__).parents[2]
ETCD = "127.0.0.1:2379"

paths = st.lists(
    st.builds(
        CardPath, st.sampled_from(["tcp", "rdma"]), st.sampled_from(["127.0.0.1", "::1"]), st.just("4420")
    ),
    max_size=2,
).map(tuple)
plans = st.lists(
    st.builds(
        PlannedCard, st.integers(0, 7), st.text(max_size=20), st.text(), st.text(), paths, st.booleans()
    ),
    max_size=8,
    unique_by=lambda card: card.slot,
).map(lambda cards: GatewayPlan(UUID, 128, tuple(cards)))


@given(plans, st.integers(1, 2**64 - 1))
def test_a_plan_survives_its_message(plan: GatewayPlan, sequence: int) -> None:
    message = plan_pb2.Plan.FromString(plan_to_message(plan, sequence).SerializeToString())
    assert plan_from_message(message) == plan
    assert (message.sequence, message.fingerprint) == (sequence, plan.fingerprint)


def test_a_plan_with_an_unknown_transport_is_refused() -> None:
    message = plan_to_message(a_plan("a"), 1)
    message.slots[0].card.paths.add(transport="carrier pigeon")
    with pytest.raises(PlanError, match="carrier pigeon"):
        plan_from_message(message)


def picture(**changes: Any) -> Picture:
    values: dict[str, Any] = {
        "plan": a_plan("L0P0", 'odd"\\\n'),
        "cluster_mode": True,
        "stale": False,
        "last_answer": 1_700_000_000.25,
        "slots_moved": 2,
        "cards_without_slot": 1,
        "problems": 3,
        "plan_in_sync": True,
        "dataplane": dataplane_pb2.GetStatusResponse(
            cards=[
                dataplane_pb2.CardStatus(serial="L0P0", state="live", active=True, timeouts=4, trouble="slow")
            ],
            counters={"misses": 9},
        ),
        "written": 1_700_000_001.0,
    }
    return Picture(**{**values, **changes})


def test_the_status_text_counts_what_is_really_used() -> None:
    lines = render(picture()).splitlines()
    assert "xkv_gateway_storage_groups_active 1" in lines
    assert 'xkv_gateway_storage_group_active{group="L0P0"} 1' in lines
    assert 'xkv_gateway_storage_group_active{group="odd\\"\\\\\\n"} 0' in lines
    assert "xkv_gateway_cluster_slots_moved 2" in lines
    assert 'xkv_gateway_storage_group_state{group="L0P0",state="live"} 1' in lines
    assert 'xkv_gateway_storage_group_trouble{group="L0P0",trouble="slow"} 1' in lines
    assert 'xkv_gateway_storage_group_timeouts_total{group="L0P0"} 4' in lines
    assert 'xkv_gateway_dataplane_counter_total{name="misses"} 9' in lines
    assert "xkv_gateway_cluster_last_answer_timestamp_seconds 1700000000.25" in lines


def test_the_manual_explains_each_trouble_of_a_card() -> None:
    names = re.findall(r'return "([a-z-]+)";', (ROOT / "dataplane/core/card/trouble.cpp").read_text())
    manual = (ROOT / "docs/gateway.md").read_text().partition("### Troubles of a card")[2]
    assert sorted(names) == sorted(re.findall(r"^\| `([a-z-]+)` \|", manual, re.MULTILINE))


def test_what_is_not_known_is_not_in_the_status_text() -> None:
    text = render(picture(plan=None, dataplane=None, last_answer=None))
    assert "storage_group" not in text
    assert "slot_plan_info" not in text
    assert "last_answer" not in text
    assert "xkv_gateway_dataplane_up 0" in text


def test_each_metric_has_help_and_type_before_its_samples() -> None:
    described: set[str] = set()
    for line in render(picture()).splitlines():
        if line.startswith("# TYPE "):
            described.add(line.split()[2])
        elif not line.startswith("#"):
            assert line.partition("{")[0].partition(" ")[0] in described


def test_the_pin_is_private_and_replaced_in_whole(tmp_path: Path) -> None:
    with StateDir(tmp_path / "state") as state:
        assert state.pinned_uuid() is None
        state.pin(UUID)
        assert state.pinned_uuid() == UUID
    path = tmp_path / "state" / "cluster_uuid"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["cluster_uuid", "control.lock"]


def test_the_state_directory_is_locked_while_it_is_open(tmp_path: Path) -> None:
    with StateDir(tmp_path), pytest.raises(StateError, match="another akv-gateway"):
        StateDir(tmp_path)
    with StateDir(tmp_path):
        pass


def test_a_leftover_of_a_killed_writer_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".status.prom.new").write_text("half a fi")
    write_atomically(tmp_path / "status.prom", "whole\n", 0o644)
    assert (tmp_path / "status.prom").read_text() == "whole\n"


def test_what_can_not_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "status.prom"
    write_atomically(path, "old\n", 0o644)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # As on a full disk: the first part is written, then the call fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            write_atomically(path, "new\n" * 4096, 0o644)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def member_hosts(loopback_net: LoopbackNet) -> Any:
    hosts = [ClusterHost(loopback_net.host(number), UUID, [ETCD]) for number in (1, 2)]
    yield hosts
    for host in hosts:
        host.stop()


def address_of(host: ClusterHost) -> HostPort:
    return HostPort(host.address, host.port)


def ours(uuid: str) -> str | None:
    return None if uuid == UUID else f"it belongs to cluster {uuid}"


async def test_the_first_host_that_answers_is_asked_and_stays(
    member_hosts: list[ClusterHost], loopback_net: LoopbackNet
) -> None:
    dead = HostPort(loopback_net.host(9), free_port(loopback_net.host(9)))
    source = MemberSource([dead, *map(address_of, member_hosts)], 0.5)
    for _ in range(3):
        assert (await source.find(ours)).members.host == address_of(member_hosts[0])
    assert (member_hosts[0].asked, member_hosts[1].asked) == (3, 0)


async def test_a_host_of_another_cluster_is_told_once_and_passed_over(
    member_hosts: list[ClusterHost],
) -> None:
    member_hosts[0].uuid = "other"
    source = MemberSource(list(map(address_of, member_hosts)), 0.5)
    found = await source.find(ours)
    assert found.members.host == address_of(member_hosts[1])
    assert found.refused == (f"{address_of(member_hosts[0])}: it belongs to cluster other",)
    source.set_aside(found.members)
    assert (await source.find(ours)).refused == ()


async def test_when_no_host_helps_the_error_names_each(member_hosts: list[ClusterHost]) -> None:
    member_hosts[0].uuid = "other"
    member_hosts[1].endpoints = []
    source = MemberSource(list(map(address_of, member_hosts)), 0.5)
    with pytest.raises(MembersError) as caught:
        await source.find(ours)
    assert "belongs to cluster other" in str(caught.value)
    assert "names no etcd member that was started" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://127.0.0.1:2379", "must begin with http://"),
        ("http://192.0.2.1:2379", "no loopback address"),
        ("http://127.0.0.1", "an etcd address that is none"),
        ("http://storage-1:2379", "no loopback address"),
    ],
)
async def test_members_that_must_not_be_asked_are_refused(
    member_hosts: list[ClusterHost], monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    answer = cluster_pb2.GetMembersResponse(
        cluster_uuid=UUID, members=[cluster_pb2.Member(host="h", client_urls=[url], started=True)]
    )
    monkeypatch.setattr(member_hosts[0], "answer", lambda: answer)
    with pytest.raises(MembersError, match=why):
        await ask_members(address_of(member_hosts[0]), 0.5)


async def test_learners_and_members_that_never_started_are_left_out(
    member_hosts: list[ClusterHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        cluster_pb2.Member(host="a", client_urls=["http://127.0.0.1:1"], started=True),
        cluster_pb2.Member(host="b", client_urls=["http://127.0.0.1:2"], started=True, learner=True),
        cluster_pb2.Member(host="c", client_urls=["http://127.0.0.1:3"]),
    ]
    answer = cluster_pb2.GetMembersResponse(cluster_uuid=UUID, members=members)
    monkeypatch.setattr(member_hosts[0], "answer", lambda: answer)
    assert (await ask_members(address_of(member_hosts[0]), 0.5)).endpoints == ("127.0.0.1:1",)


async def test_a_host_that_is_not_loopback_is_not_asked() -> None:
    with pytest.raises(MembersError, match="is not a loopback address"):
        await ask_members(HostPort("192.0.2.1", 5000), 0.5)


def test_a_dataplane_that_tells_nothing_new_is_asked_more_seldom() -> None:
    def answer(gets: int = 1, state: str = "live", busy_ns: int = 0) -> dataplane_pb2.GetStatusResponse:
        card = dataplane_pb2.CardStatus(serial="A", state=state)
        return dataplane_pb2.GetStatusResponse(cards=[card], counters={"gets": gets, "busy_ns": busy_ns})

    pace = Pace()
    quiet = [pace.after(answer(busy_ns=number)) for number in range(QUIET_ANSWERS + 2)]
    assert quiet == [EVERY_SECONDS] * QUIET_ANSWERS + [IDLE_SECONDS] * 2
    for new in (answer(gets=2), answer(gets=2, state="backoff"), None):
        assert pace.after(new) == EVERY_SECONDS
    assert {pace.after(None) for _ in range(2 * QUIET_ANSWERS)} == {EVERY_SECONDS}
