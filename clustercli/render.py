"""Answers of the cluster API as JSON documents (a stable schema, docs/cluster.md) and as tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from akv.v1 import cluster_pb2
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

HEALTH_WORDS = {0: "healthy", 1: "sick", 2: "unknown"}


def members_document(answer: cluster_pb2.GetMembersResponse) -> dict[str, Any]:
    """The etcd members, voters first."""
    return {
        "cluster_uuid": answer.cluster_uuid,
        "cluster_name": answer.cluster_name,
        "leader": answer.leader,
        "members": [
            {
                "host": member.host,
                "member_id": member.member_id,
                "client_urls": list(member.client_urls),
                "peer_urls": list(member.peer_urls),
                "learner": member.learner,
                "started": member.started,
            }
            for member in answer.members
        ],
    }


def _card(card: cluster_pb2.ClusterCard) -> dict[str, Any]:
    return {
        "device": card.device,
        "xdp_serial": card.xdp_serial,
        "nqn": card.nqn,
        "health_xdp": card.health_xdp,
        "reason": card.reason,
        "since": card.since,
        "addresses": list(card.addresses),
        "slot": card.slot,
        "state": card.state,
    }


def cluster_document(answer: cluster_pb2.GetClusterResponse) -> dict[str, Any]:
    """Hosts, cards, health and quorum; `etcd_quorum` has the manual's two keys only."""
    return {
        "cluster_uuid": answer.cluster_uuid,
        "name": answer.name,
        "leader": answer.leader,
        "fingerprint": answer.fingerprint,
        "hosts": [
            {
                "host": host.host,
                "enabled": host.enabled,
                "witness": host.witness,
                "addresses": dict(sorted(host.addresses.items())),
                "cards": [_card(card) for card in host.cards],
            }
            for host in answer.hosts
        ],
        "etcd_quorum": {
            "members": answer.etcd_quorum.members,
            "tolerated_failures": answer.etcd_quorum.tolerated_failures,
        },
        "etcd_learners": answer.etcd_quorum.learners,
        "card_problems": list(answer.card_problems),
    }


def members_table(document: dict[str, Any]) -> RenderableType:
    """The etcd members for people."""
    table = Table(title=f"etcd members of {document['cluster_name']}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("host", "member id", "role", "state", "client URL"):
        table.add_column(heading)
    for member in document["members"]:
        role = "learner" if member["learner"] else "voter"
        state = "started" if member["started"] else "not started"
        urls = ", ".join(member["client_urls"])
        leads = " (leader)" if member["host"] == document["leader"] else ""
        table.add_row(member["host"] + leads, member["member_id"], role, state, urls)
    return table


def cluster_table(document: dict[str, Any]) -> RenderableType:
    """Hosts and cards for people."""
    table = Table(title=f"cluster {document['name']}", title_justify="left", box=SIMPLE_HEAD)
    for heading in (
        "host",
        "enabled",
        "card",
        "serial",
        "health_xdp",
        "since",
        "slot",
        "addresses",
        "reason",
    ):
        table.add_column(heading)
    for host in document["hosts"]:
        name = host["host"] + (" (witness)" if host["witness"] else "")
        enabled = str(host["enabled"])
        for card in host["cards"] or [None]:
            table.add_row(name, enabled, *(_card_cells(card) if card else ()))
            name = enabled = ""
    quorum = document["etcd_quorum"]
    learners = f", {document['etcd_learners']} learning" if document["etcd_learners"] else ""
    summary = (
        f"leader {document['leader'] or 'unknown'}, etcd quorum of {quorum['members']}{learners}, "
        f"tolerates {quorum['tolerated_failures']} failures, slot plan {document['fingerprint']}"
    )
    return Group(table, *document["card_problems"], summary)


def _card_cells(card: dict[str, Any]) -> tuple[str, ...]:
    health = card["health_xdp"]
    return (
        card["device"] + (" (stopped)" if card["state"] == "stopped" else ""),
        card["xdp_serial"],
        f"{health} {HEALTH_WORDS.get(health, '?')}",
        time_text(card["since"]),
        str(card["slot"]) if card["slot"] >= 0 else "none",
        ", ".join(card["addresses"]),
        card["reason"],
    )


def time_text(seconds: float) -> str:
    """Unix seconds as UTC for people; empty for 0."""
    if seconds <= 0:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
