"""What `--output json` gives is what docs/clustercli.md promises: the same keys, of the same types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from akv.v1 import cluster_pb2 as pb
from akv.v1 import pki_pb2

from clustercli import render, render_cards, render_diagnosis
from clustercli.commands.pki import pki_document

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clustercli.md"
# Words of the page's rows that are values or commands, not keys.
VALUES = frozenset(
    {
        *("running", "stopped", "mismatch", "duplicate", "ok", "warning", "failed", "skipped"),
        *("leader", "health", "membership", "host", "card", "alarm"),
    }
)
HOST = pb.ClusterHost(host="h", addresses={"api": "a:1"}, cards=[pb.ClusterCard(addresses=["a"])])
DOCUMENTS: dict[str, dict[str, Any]] = {
    "get_cluster": render.cluster_document(pb.GetClusterResponse(hosts=[HOST], card_problems=["p"])),
    "get_members": render.members_document(
        pb.GetMembersResponse(members=[pb.Member(client_urls=["u"], peer_urls=["p"])])
    ),
    "cards": render_cards.cards_document(
        pb.ListCardsResponse(cards=[pb.RegisteredCard(places=[pb.CardPlace(addresses=["a"])])])
    ),
    "cards forget": render_cards.forgotten_document(pb.ForgetCardResponse(moved_serials=["s"])),
    "plan": render_cards.plan_document(pb.ShowPlanResponse(slots=[pb.PlanSlot()], surplus_serials=["s"])),
    "events": render_diagnosis.events_document(pb.ListEventsResponse(events=[pb.ClusterEvent()])),
    "doctor": render_diagnosis.doctor_document(pb.CheckHostResponse(checks=[pb.HostCheck()])),
    "pki show": pki_document(
        pki_pb2.GetPkiResponse(certificates=[pki_pb2.IssuedCertificate()], tokens=[pki_pb2.OpenToken()])
    ),
}
# The type of each key, wherever it stands; a list is told by what is in it.
TYPES = {
    **dict.fromkeys(
        ("cluster_uuid", "name", "cluster_name", "leader", "fingerprint", "host", "device"), "str"
    ),
    **dict.fromkeys(
        ("xdp_serial", "nqn", "reason", "state", "member_id", "check", "check_text", "kind"), "str"
    ),
    **dict.fromkeys(
        ("subject", "text", "result", "remedy", "role", "serial", "issued_by", "token_id"), "str"
    ),
    **dict.fromkeys(("witness", "learner", "started", "in_use", "routable", "revoked"), "bool"),
    **dict.fromkeys(("enabled", "health_xdp", "slot", "join_seq", "members", "tolerated_failures"), "int"),
    **dict.fromkeys(("etcd_learners", "num_dbs", "layout_version", "number", "failed", "warnings"), "int"),
    **dict.fromkeys(("freed_slot",), "int"),
    **dict.fromkeys(("since", "time", "expires"), "float"),
    **dict.fromkeys(("card_problems", "client_urls", "peer_urls", "moved_serials"), "list of str"),
    "surplus_serials": "list of str",
    "etcd_quorum": "object",
    "ca": "object",
    **dict.fromkeys(("hosts", "cards", "places", "slots", "events", "checks"), "list of object"),
    **dict.fromkeys(("certificates", "tokens"), "list of object"),
}
# Keys that stand for different things in different places.
BY_PLACE = {
    "get_cluster.hosts.addresses": "object",
    "get_cluster.hosts.cards.addresses": "list of str",
    "get_members.members": "list of object",
    "cards.cards.places.addresses": "list of str",
}


def kind(value: Any) -> str:
    """A value's type in the words of TYPES."""
    if isinstance(value, list):
        return f"list of {kind(value[0])}"
    return "object" if isinstance(value, dict) else type(value).__name__


def entries(value: Any, path: str) -> list[tuple[str, str, Any]]:
    """Path, key and value of every key below `value`; what hosts call their addresses is left out."""
    if isinstance(value, list):
        return [found for item in value for found in entries(item, path)]
    if not isinstance(value, dict) or path == "get_cluster.hosts.addresses":
        return []
    here = [(f"{path}.{key}", key, item) for key, item in value.items()]
    return here + [found for place, _, item in here for found in entries(item, place)]


def promised() -> dict[str, set[str]]:
    """The words of each command's row on the page."""
    table = PAGE.read_text(encoding="utf-8").partition("## JSON")[2]
    rows = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", table, re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", text))
        for names, text in rows
        for name in re.findall(r"`([^`]+)`", names)
    }


@pytest.mark.parametrize("command", DOCUMENTS)
def test_the_page_has_every_key_and_no_other(command: str) -> None:
    keys = {key for _, key, _ in entries(DOCUMENTS[command], command)}
    words = promised()[command]
    assert keys <= words, "keys that the page does not tell of"
    assert words - keys <= VALUES, "keys that are gone or were renamed"


@pytest.mark.parametrize("command", DOCUMENTS)
def test_no_key_changes_its_type(command: str) -> None:
    found = {path: kind(value) for path, _, value in entries(DOCUMENTS[command], command)}
    assert found == {path: BY_PLACE.get(path) or TYPES[path.rpartition(".")[2]] for path in found}


def test_every_command_with_a_document_is_on_the_page() -> None:
    commands = {
        "create_cluster",
        "add_node",
        "remove_node",
        "pki issue",
        "pki renew",
        "pki revoke",
        "pki token",
    }
    assert commands | set(DOCUMENTS) == set(promised())
