"""clustercli: documents in the manual's shape, tables, option order."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from akv.v1 import cluster_pb2
from rich.console import Console, RenderableType

from clustercli import render, render_cards, render_diagnosis
from clustercli.main import hoist

CLUSTER = cluster_pb2.GetClusterResponse(
    cluster_uuid="u-1",
    name="kv-cache",
    leader="storage-1",
    hosts=[
        cluster_pb2.ClusterHost(
            host="storage-1",
            enabled=1,
            cards=[
                cluster_pb2.ClusterCard(
                    device="xdp0",
                    xdp_serial="L0P0",
                    nqn="nqn.x",
                    health_xdp=1,
                    reason="its storage service does not run",
                    since=1000.5,
                    addresses=["tcp:127.0.0.1:4420"],
                    slot=3,
                    state="stopped",
                )
            ],
        ),
        cluster_pb2.ClusterHost(host="witness-1", enabled=0, witness=True),
    ],
    etcd_quorum=cluster_pb2.EtcdQuorum(members=3, tolerated_failures=1, learners=1),
    fingerprint="00ff",
)
MEMBERS = cluster_pb2.GetMembersResponse(
    cluster_uuid="u-1",
    cluster_name="kv-cache",
    leader="storage-1",
    members=[
        cluster_pb2.Member(host="storage-1", member_id="a1", client_urls=["http://[::1]:2379"], started=True),
        cluster_pb2.Member(host="storage-2", member_id="b2", learner=True),
    ],
)


def printed(table: RenderableType) -> str:
    console = Console(file=StringIO(), width=240, highlight=False, markup=False)
    console.print(table)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_quorum_has_the_manuals_two_keys_and_zeros_are_shown() -> None:
    document = json.loads(json.dumps(render.cluster_document(CLUSTER)))
    assert document["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
    assert document["etcd_learners"] == 1
    first, second = document["hosts"]
    assert (first["enabled"], second["enabled"], second["witness"], second["cards"]) == (1, 0, True, [])
    card = first["cards"][0]
    assert (card["xdp_serial"], card["health_xdp"], card["slot"]) == ("L0P0", 1, 3)


def test_tables_show_what_an_operator_needs() -> None:
    text = printed(render.cluster_table(render.cluster_document(CLUSTER)))
    for word in (
        "storage-1",
        "witness-1 (witness)",
        "xdp0 (stopped)",
        "1 sick",
        "1970-01-01 00:16:40Z",
        "1 learning",
    ):
        assert word in text
    text = printed(render.members_table(render.members_document(MEMBERS)))
    for word in ("storage-1 (leader)", "voter", "learner", "not started", "http://[::1]:2379"):
        assert word in text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["get_cluster", "--output", "json"], ["--output", "json", "get_cluster"]),
        (["add_node", "--host=h", "-n", "x"], ["--host=h", "add_node", "-n", "x"]),
        (["get_members", "--timeout"], ["--timeout"]),
        ([], []),
    ],
)
def test_global_options_may_stand_on_either_side(given: list[str], wanted: list[str]) -> None:
    assert hoist(given) == wanted


def test_cards_plan_and_the_doctors_report_say_what_needs_someone() -> None:
    bad = cluster_pb2.CardPlace(host="h1", device="xdp1", check="mismatch", check_text="set AWC_XDP_SERIALS")
    good = cluster_pb2.CardPlace(host="h1", device="xdp0", check="checked", in_use=True, state="running")
    cards = [
        cluster_pb2.RegisteredCard(xdp_serial="L0P0", join_seq=1, slot=3, places=[good]),
        cluster_pb2.RegisteredCard(xdp_serial="LONELY", join_seq=2, slot=-1),
        cluster_pb2.RegisteredCard(xdp_serial="HW1", slot=-1, places=[bad]),
    ]
    document = render_cards.cards_document(cluster_pb2.ListCardsResponse(cluster_name="kv", cards=cards))
    text = printed(render_cards.cards_table(document))
    for word in ("xdp1 (not used)", "HW1: mismatch: set AWC_XDP_SERIALS", "no host lists it", "0 healthy"):
        assert word in text
    slot = cluster_pb2.PlanSlot(slot=3, xdp_serial="L0P0", health_xdp=1, reason="it is sick")
    plan = cluster_pb2.ShowPlanResponse(cluster_name="kv", slots=[slot], surplus_serials=["NINTH"])
    text = printed(render_cards.plan_table(render_cards.plan_document(plan)))
    for word in ("1 sick", "it is sick", "NINTH"):
        assert word in text
    check = cluster_pb2.HostCheck(name="card-cli", result="failed", text="it hangs", remedy="mend it")
    report = render_diagnosis.doctor_document(cluster_pb2.CheckHostResponse(host="h1", checks=[check]))
    assert (report["failed"], report["warnings"]) == (1, 0)
    assert "not ready; failed: 1" in printed(render_diagnosis.doctor_table(report))
