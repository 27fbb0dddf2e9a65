"""One snapshot of the records, and the checks, as answers about cards and the slot plan. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from akv.v1 import cluster_pb2 as pb

from controlplane.base.addresses import HostPort
from controlplane.cluster.membership_file import Membership
from controlplane.model.card_check import CardCheck
from controlplane.model.cards import CardRecord, ClusterSnapshot, Health, HealthRecord, RegistryEntry
from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.slots import fingerprint, plan_slots

DEFAULT_NUM_DBS = 128


def listed_at(picture: ClusterSnapshot, serial: str) -> list[str]:
    """Where enabled hosts list the card, as "host-1 xdp0"."""
    enabled = _enabled(picture)
    return sorted(
        f"{card.host} {card.device}"
        for card in picture.cards
        if card.xdp_serial == serial and card.host in enabled
    )


def card_problems(picture: ClusterSnapshot, checks: Iterable[CardCheck]) -> list[str]:
    """One sentence for each listed card of an enabled host that is contradicted or a duplicate."""
    enabled = _enabled(picture)
    return sorted(
        f"{check.host} {check.device} ({check.xdp_serial}): {check.state}: {check.text}"
        for check in checks
        if check.host in enabled and check.state in {"mismatch", "duplicate"}
    )


def cards_response(
    membership: Membership, picture: ClusterSnapshot, checks: Iterable[CardCheck]
) -> pb.ListCardsResponse:
    """Registered cards in the order of joining, then those that a host lists and the registry has not."""
    enabled = _enabled(picture)
    verdicts = {(check.host, check.device): check for check in checks if check.host in enabled}
    plan = plan_slots(picture.registry)
    health = _health(picture)
    places: dict[str, list[pb.CardPlace]] = {}
    nqns: dict[str, str] = {}
    for card in sorted(picture.cards, key=lambda card: (card.host, card.device)):
        check = verdicts.get((card.host, card.device))
        if check is not None and check.xdp_serial == card.xdp_serial:
            verdicts.pop((card.host, card.device))
        else:
            check = None
        nqns.setdefault(card.xdp_serial, card.nqn)
        place = _place(card, health.get((card.host, card.device)), check, card.host in enabled)
        places.setdefault(card.xdp_serial, []).append(place)
    for check in sorted(verdicts.values(), key=lambda check: (check.host, check.device)):
        nqns.setdefault(check.xdp_serial, check.nqn)
        places.setdefault(check.xdp_serial, []).append(_rejected(check))
    registry = sorted(picture.registry, key=lambda entry: (entry.join_seq, entry.serial))
    known = {entry.serial for entry in registry}
    unregistered = [RegistryEntry(s, nqns[s], "", 0) for s in sorted(places.keys() - known)]
    cards = [
        pb.RegisteredCard(
            xdp_serial=entry.serial,
            nqn=entry.nqn,
            join_seq=entry.join_seq,
            slot=slot if (slot := plan.slot_of(entry.serial)) is not None else -1,
            places=places.get(entry.serial, []),
        )
        for entry in [*registry, *unregistered]
    ]
    return pb.ListCardsResponse(
        cluster_uuid=membership.cluster_uuid,
        cluster_name=membership.cluster_name,
        fingerprint=fingerprint(LAYOUT_VERSION, DEFAULT_NUM_DBS, plan.slots),
        cards=cards,
    )


def plan_response(membership: Membership, picture: ClusterSnapshot, num_dbs: int) -> pb.ShowPlanResponse:
    """The slot plan over the registry, and whether a gateway may route to each slot."""
    plan = plan_slots(picture.registry)
    entries = {entry.serial: entry for entry in picture.registry}
    slots = [_slot(slot, entries[serial], picture) for slot, serial in plan.slots.items()]
    return pb.ShowPlanResponse(
        cluster_uuid=membership.cluster_uuid,
        cluster_name=membership.cluster_name,
        fingerprint=fingerprint(LAYOUT_VERSION, num_dbs, plan.slots),
        num_dbs=num_dbs,
        layout_version=LAYOUT_VERSION,
        slots=slots,
        surplus_serials=plan.surplus,
    )


def _slot(slot: int, entry: RegistryEntry, picture: ClusterSnapshot) -> pb.PlanSlot:
    answer = pb.PlanSlot(
        slot=slot,
        xdp_serial=entry.serial,
        nqn=entry.nqn,
        join_seq=entry.join_seq,
        health_xdp=int(Health.UNKNOWN),
    )
    enabled = _enabled(picture)
    records = [card for card in picture.cards if (card.xdp_serial, card.nqn) == (entry.serial, entry.nqn)]
    if not records:
        answer.reason = "no host lists it"
        return answer
    card = min(records, key=lambda c: (c.host not in enabled, c.state != "running", c.host, c.device))
    known = _health(picture).get((card.host, card.device))
    health = known if known is not None and known.xdp_serial == card.xdp_serial else None
    answer.host = card.host
    answer.health_xdp = int(health.health_xdp) if health is not None else int(Health.UNKNOWN)
    answer.reason = _obstacle(card, health, card.host in enabled)
    answer.routable = not answer.reason
    return answer


def _obstacle(card: CardRecord, health: HealthRecord | None, enabled: bool) -> str:
    """Why no gateway may route to the card; empty when nothing speaks against it."""
    if not enabled:
        return f"its host {card.host} is disabled"
    if card.state != "running":
        return f"its host {card.host} says that it is {card.state}"
    if health is None:
        return ""
    effective = health.last_known if health.health_xdp is Health.UNKNOWN else health.health_xdp
    return health.reason if effective is Health.SICK else ""


def _place(
    card: CardRecord, health: HealthRecord | None, check: CardCheck | None, enabled: bool
) -> pb.CardPlace:
    known = health if health is not None and health.xdp_serial == card.xdp_serial else None
    return pb.CardPlace(
        host=card.host,
        device=card.device,
        addresses=[f"{p.transport}:{HostPort(p.traddr, int(p.trsvcid))}" for p in card.paths],
        state=card.state if enabled else "disabled",
        health_xdp=int(known.health_xdp if known is not None else Health.UNKNOWN),
        reason=known.reason if known is not None else "",
        check=check.state if check is not None else "unchecked",
        check_text=check.text if check is not None else "its host has not told yet",
        in_use=True,
    )


def _rejected(check: CardCheck) -> pb.CardPlace:
    return pb.CardPlace(
        host=check.host,
        device=check.device,
        health_xdp=int(Health.UNKNOWN),
        check=check.state,
        check_text=check.text,
        in_use=False,
    )


def _enabled(picture: ClusterSnapshot) -> set[str]:
    return {record.host for record in picture.hosts if record.enabled}


def _health(picture: ClusterSnapshot) -> dict[tuple[str, str], HealthRecord]:
    return {(record.host, record.device): record for record in picture.health}
