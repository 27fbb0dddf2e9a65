"""Plans as messages: between the model's GatewayPlan and akv.v1.Plan."""

from __future__ import annotations

from akv.v1 import plan_pb2

from controlplane.model.cards import CardPath
from controlplane.model.plan import GatewayPlan, PlannedCard


class PlanError(ValueError):
    """A plan from the dataplane that can't be understood."""


def plan_to_message(plan: GatewayPlan, sequence: int) -> plan_pb2.Plan:
    """The message of a plan under its sequence number."""
    return plan_pb2.Plan(
        cluster_uuid=plan.cluster_uuid,
        sequence=sequence,
        layout_version=plan.layout_version,
        num_dbs=plan.num_dbs,
        fingerprint=plan.fingerprint,
        slots=[_slot_to_message(card) for card in plan.cards],
    )


def _slot_to_message(card: PlannedCard) -> plan_pb2.SlotAssignment:
    paths = [
        plan_pb2.CardPath(transport=path.transport, traddr=path.traddr, trsvcid=path.trsvcid)
        for path in card.paths
    ]
    target = plan_pb2.CardTarget(serial=card.serial, nqn=card.nqn, uuid=card.uuid, paths=paths)
    return plan_pb2.SlotAssignment(slot=card.slot, card=target, routable=card.routable, reason=card.reason)


def plan_from_message(message: plan_pb2.Plan) -> GatewayPlan:
    """The plan of a message, without its sequence number. Raises PlanError."""
    cards = tuple(_slot_from_message(slot) for slot in message.slots)
    return GatewayPlan(message.cluster_uuid, message.num_dbs, cards, message.layout_version)


def _slot_from_message(slot: plan_pb2.SlotAssignment) -> PlannedCard:
    card = slot.card
    paths = tuple(_path_from_message(path) for path in card.paths)
    return PlannedCard(slot.slot, card.serial, card.nqn, card.uuid, paths, slot.routable, slot.reason)


def _path_from_message(path: plan_pb2.CardPath) -> CardPath:
    if path.transport == "tcp":
        return CardPath("tcp", path.traddr, path.trsvcid)
    if path.transport == "rdma":
        return CardPath("rdma", path.traddr, path.trsvcid)
    raise PlanError(f"the dataplane's plan has a path with the transport {path.transport!r}")
