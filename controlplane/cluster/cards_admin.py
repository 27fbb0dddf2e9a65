"""Cards as an operator sees and changes them: the list with its checks, the slot plan, forgetting one."""

from __future__ import annotations

import asyncio

from akv.v1 import cluster_pb2 as pb

from controlplane.base.backoff import Tries
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import InvalidRequest, NotFound, RequestError, Unavailable
from controlplane.cluster.card_views import DEFAULT_NUM_DBS, cards_response, listed_at, plan_response
from controlplane.cluster.event_log import EventSink
from controlplane.cluster.link import NO_CLUSTER, EtcdLink
from controlplane.cluster.membership_file import Membership
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.cards import ClusterSnapshot
from controlplane.model.hashing import LAYOUT_VERSION
from controlplane.model.slots import fingerprint, moved_slots, plan_slots
from controlplane.store.checks import read_checks
from controlplane.store.errors import OutcomeUnknown, StoreError, StoreUnavailable
from controlplane.store.registry import forget_seen_card
from controlplane.store.writes import delete_card

MAX_NUM_DBS = 1 << 20
# Longer than an election of etcd's takes, since an operator waits rather than asks again.
READ_SECONDS = 3.0
FORGET_TRIES = 4

log = get_logger("cards")


class CardsAdmin:
    """Reads and changes the registry for one host's API."""

    def __init__(self, supervisor: MemberSupervisor, link: EtcdLink, events: EventSink) -> None:
        self._supervisor = supervisor
        self._link = link
        self._events = events

    async def list_cards(self) -> pb.ListCardsResponse:
        """Every card that the registry or a host knows."""
        membership = self._membership()
        try:
            picture, checks = await asyncio.gather(
                self._picture(membership), read_checks(self._link.client, seconds=READ_SECONDS)
            )
        except StoreError as error:
            raise Unavailable(f"the cards can't be read: etcd: {error}") from error
        return cards_response(membership, picture, checks)

    async def plan(self, num_dbs: int) -> pb.ShowPlanResponse:
        """The slot plan and its fingerprint, as a gateway with this `num_dbs` computes them."""
        if num_dbs > MAX_NUM_DBS:
            raise InvalidRequest(f"num_dbs {num_dbs} is not in 1..{MAX_NUM_DBS}")
        membership = self._membership()
        try:
            picture = await self._picture(membership)
        except StoreError as error:
            raise Unavailable(f"the plan can't be read: etcd: {error}") from error
        return plan_response(membership, picture, num_dbs or DEFAULT_NUM_DBS)

    async def forget_card(self, serial: str, even_if_listed: bool) -> pb.ForgetCardResponse:
        """Take a card out of the registry. Other cards may move into its slot, or back to theirs."""
        if not serial:
            raise InvalidRequest("no serial number is given: name the card to forget")
        membership = self._membership()
        try:
            answer, picture = await self._forget(membership, serial, even_if_listed)
            await self._drop_stale_records(picture, serial)
        except StoreError as error:
            raise Unavailable(f"card {serial} can't be forgotten now: etcd: {error}; ask again") from error
        log.warning("card forgotten", serial=serial, slot=answer.freed_slot, moved=list(answer.moved_serials))
        moved = f", which moves {', '.join(answer.moved_serials)}" if answer.moved_serials else ""
        slot = f"its slot {answer.freed_slot} is free" if answer.freed_slot >= 0 else "it had no slot"
        self._events.note("card", serial, f"was forgotten by an administrator: {slot}{moved}")
        return answer

    async def _forget(
        self, membership: Membership, serial: str, even_if_listed: bool
    ) -> tuple[pb.ForgetCardResponse, ClusterSnapshot]:
        """Forget it in the registry that the answer was made from, not in one that changed meanwhile."""
        lost: pb.ForgetCardResponse | None = None
        async for _ in Tries(FORGET_TRIES):
            picture = await self._picture(membership)
            if lost is not None and not _is_registered(picture, serial):
                return lost, picture
            answer = _forgetting(membership, picture, serial, even_if_listed)
            try:
                if await forget_seen_card(self._link.client, serial, picture.revision):
                    return answer, picture
            except OutcomeUnknown:
                lost = answer
        raise StoreUnavailable("the registry changes or answers get lost at each try")

    async def _drop_stale_records(self, picture: ClusterSnapshot, serial: str) -> None:
        """Records of hosts that were taken out: no one else would ever remove them."""
        enabled = {record.host for record in picture.hosts if record.enabled}
        for card in picture.cards:
            if card.xdp_serial == serial and card.host not in enabled:
                await delete_card(self._link.client, card.host, card.device)

    async def _picture(self, membership: Membership) -> ClusterSnapshot:
        return await self._link.snapshot(membership, READ_SECONDS)

    def _membership(self) -> Membership:
        membership = self._supervisor.membership
        if membership is None:
            raise RequestError(NO_CLUSTER)
        return membership


def _is_registered(picture: ClusterSnapshot, serial: str) -> bool:
    """Whether the registry has an entry of this serial, be it unreadable."""
    damaged = {record.name for record in picture.unreadable if record.kind == "registry"}
    return serial in damaged or any(entry.serial == serial for entry in picture.registry)


def _forgetting(
    membership: Membership, picture: ClusterSnapshot, serial: str, even_if_listed: bool
) -> pb.ForgetCardResponse:
    """What forgetting the card changes. Raises RequestError when it must not be forgotten."""
    entry = next((entry for entry in picture.registry if entry.serial == serial), None)
    if not _is_registered(picture, serial):
        known = ", ".join(sorted(entry.serial for entry in picture.registry)) or "none"
        raise NotFound(
            f"there is no card {serial[:40]!r} in cluster {membership.cluster_name}; its cards are {known}"
        )
    places = listed_at(picture, serial)
    if places and not even_if_listed:
        raise RequestError(
            f"card {serial} is listed by {', '.join(places)} and would join again at once: take it off the "
            "card CLI's list or remove its host first, or add --even-if-listed"
        )
    before = plan_slots(picture.registry)
    after = plan_slots(other for other in picture.registry if other.serial != serial)
    slot = before.slot_of(serial)
    return pb.ForgetCardResponse(
        xdp_serial=serial,
        nqn=entry.nqn if entry is not None else "",
        freed_slot=slot if slot is not None else -1,
        moved_serials=moved_slots(before, after),
        fingerprint=fingerprint(LAYOUT_VERSION, DEFAULT_NUM_DBS, after.slots),
    )
