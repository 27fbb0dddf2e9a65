"""Cards and the slot plan as JSON documents (a stable schema, docs/clustercli.md) and as tables."""

from __future__ import annotations

from typing import Any

from akv.v1 import cluster_pb2
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from clustercli.render import HEALTH_WORDS


def cards_document(answer: cluster_pb2.ListCardsResponse) -> dict[str, Any]:
    """Registered cards in the order of joining, then those that are not registered (join_seq 0)."""
    return {
        "cluster_uuid": answer.cluster_uuid,
        "cluster_name": answer.cluster_name,
        "fingerprint": answer.fingerprint,
        "cards": [
            {
                "xdp_serial": card.xdp_serial,
                "nqn": card.nqn,
                "join_seq": card.join_seq,
                "slot": card.slot,
                "places": [_place(place) for place in card.places],
            }
            for card in answer.cards
        ],
    }


def _place(place: cluster_pb2.CardPlace) -> dict[str, Any]:
    return {
        "host": place.host,
        "device": place.device,
        "in_use": place.in_use,
        "state": place.state,
        "addresses": list(place.addresses),
        "health_xdp": place.health_xdp,
        "reason": place.reason,
        "check": place.check,
        "check_text": place.check_text,
    }


def cards_table(document: dict[str, Any]) -> RenderableType:
    """The cards for people; what needs someone is told below the table."""
    table = Table(title=f"cards of {document['cluster_name']}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("serial", "joined", "slot", "host", "card", "health_xdp", "check", "addresses"):
        table.add_column(heading)
    remarks = []
    for card in document["cards"]:
        first = (card["xdp_serial"], str(card["join_seq"] or "no"), _slot(card["slot"]))
        for place in card["places"] or [None]:
            table.add_row(*first, *(_place_cells(place) if place else ("no host lists it",)))
            first = ("", "", "")
            if place and place["check_text"]:
                remarks.append(f"{card['xdp_serial']}: {place['check']}: {place['check_text']}")
    return Group(table, *remarks, f"slot plan {document['fingerprint']}")


def _place_cells(place: dict[str, Any]) -> tuple[str, ...]:
    device = place["device"] + ("" if place["in_use"] else " (not used)")
    state = "" if place["state"] in {"", "running"} else f" ({place['state']})"
    health = f"{place['health_xdp']} {HEALTH_WORDS.get(place['health_xdp'], '?')}" if place["in_use"] else ""
    return place["host"], device + state, health, place["check"], ", ".join(place["addresses"])


def _slot(slot: int) -> str:
    return str(slot) if slot >= 0 else "none"


def forgotten_document(answer: cluster_pb2.ForgetCardResponse) -> dict[str, Any]:
    """What forgetting a card changed."""
    return {
        "xdp_serial": answer.xdp_serial,
        "nqn": answer.nqn,
        "freed_slot": answer.freed_slot,
        "moved_serials": list(answer.moved_serials),
        "fingerprint": answer.fingerprint,
    }


def forgotten_text(document: dict[str, Any]) -> str:
    """The same for people."""
    slot = f"slot {document['freed_slot']} is free" if document["freed_slot"] >= 0 else "it had no slot"
    moved = ", ".join(document["moved_serials"])
    tail = f"; these cards moved: {moved}" if moved else "; no card moved"
    return f"Card {document['xdp_serial']} is forgotten: {slot}{tail}; slot plan {document['fingerprint']}"


def plan_document(answer: cluster_pb2.ShowPlanResponse) -> dict[str, Any]:
    """The slot plan; slots without a card are not listed."""
    return {
        "cluster_uuid": answer.cluster_uuid,
        "cluster_name": answer.cluster_name,
        "fingerprint": answer.fingerprint,
        "num_dbs": answer.num_dbs,
        "layout_version": answer.layout_version,
        "slots": [
            {
                "slot": slot.slot,
                "xdp_serial": slot.xdp_serial,
                "nqn": slot.nqn,
                "join_seq": slot.join_seq,
                "host": slot.host,
                "health_xdp": slot.health_xdp,
                "routable": slot.routable,
                "reason": slot.reason,
            }
            for slot in answer.slots
        ],
        "surplus_serials": list(answer.surplus_serials),
    }


def plan_table(document: dict[str, Any]) -> RenderableType:
    """The slot plan for people."""
    table = Table(title=f"slot plan of {document['cluster_name']}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("slot", "serial", "joined", "host", "health_xdp", "routable", "why not"):
        table.add_column(heading)
    for slot in document["slots"]:
        health = f"{slot['health_xdp']} {HEALTH_WORDS.get(slot['health_xdp'], '?')}"
        table.add_row(
            str(slot["slot"]),
            slot["xdp_serial"],
            str(slot["join_seq"]),
            slot["host"],
            health,
            "yes" if slot["routable"] else "no",
            slot["reason"] if not slot["routable"] else "",
        )
    surplus = ", ".join(document["surplus_serials"])
    tail = [f"without a slot, since eight cards joined before: {surplus}"] if surplus else []
    return Group(table, *tail, f"fingerprint {document['fingerprint']} for num_dbs {document['num_dbs']}")
