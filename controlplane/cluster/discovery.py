"""What a host says about itself: its cards, every cycle, and its own record; and what it notes of the others.

A card CLI that hangs, fails or prints garbage means "unknown": nothing is written and nothing is removed.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.base.card_cli import CardCli, CardCliError, ListedCard
from controlplane.base.logging import get_logger
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.discovery_plan import CardChanges, plan_cards, to_record
from controlplane.cluster.errors import ClusterError
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.membership_file import Membership, PeerHost
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.cards import ClusterSnapshot, HostRecord
from controlplane.store.codec import RecordError
from controlplane.store.errors import StoreError
from controlplane.store.hosts import update_host
from controlplane.store.registry import IdentityConflict, register_card
from controlplane.store.writes import delete_card, write_card

log = get_logger("discovery")


class Discovery:
    """One host's reports to the cluster."""

    def __init__(
        self, settings: ClusterSettings, supervisor: MemberSupervisor, link: EtcdLink, cli: CardCli
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._link = link
        self._cli = cli
        self._cli_state = OnChange()
        self._etcd_state = OnChange()
        self._card_errors = OnChange()

    async def cycle(self) -> None:
        """Ask the card CLI and bring etcd's records of this host up to date. Raises nothing of etcd's."""
        membership = self._supervisor.membership
        if membership is None or membership.phase != "member":
            return
        cards = await self._list_cards()
        try:
            await self._report(membership, cards)
        except (StoreError, ClusterError, RecordError) as error:
            if self._etcd_state.changed(type(error).__name__):
                log.warning("cards not reported", reason=str(error))
            return
        if self._etcd_state.changed(""):
            log.info("cards reported again")

    async def _list_cards(self) -> tuple[ListedCard, ...] | None:
        try:
            cards = await self._cli.list_cards()
        except CardCliError as error:
            if self._cli_state.changed(str(error)):
                log.warning("cards unknown", reason=str(error), effect="nothing is written or removed")
            return None
        if self._cli_state.changed(""):
            log.info("card CLI answers again")
        return cards

    async def _report(self, membership: Membership, cards: tuple[ListedCard, ...] | None) -> None:
        picture = await self._link.snapshot(membership)
        own = next((record for record in picture.hosts if record.host == self._settings.host), None)
        self._supervisor.note_peers(peers_of(picture, self._settings.host))
        if own is None or not own.enabled:
            return
        if own != self._own_record(own):
            await update_host(self._link.client, own.host, self._own_record)
        if cards is not None:
            await self._write(self._plan(picture, cards))

    def _own_record(self, present: HostRecord | None) -> HostRecord | None:
        """Keep the addresses right; whether the host is enabled is not the host's to say."""
        if present is None or not present.enabled:
            return None
        return replace(present, witness=self._settings.witness, addresses=self._settings.addresses)

    def _plan(self, picture: ClusterSnapshot, cards: tuple[ListedCard, ...]) -> CardChanges:
        host = self._settings.host
        listed = [to_record(host, card, self._settings.xdp_serials) for card in cards]
        doubtful = {r.name for r in picture.unreadable if r.kind == "card" and r.host == host}
        return plan_cards(host, listed, picture.cards, picture.registry, frozenset(doubtful))

    async def _write(self, changes: CardChanges) -> None:
        client = self._link.client
        errors = list(changes.errors)
        refused: set[str] = set()
        for card in changes.register:
            try:
                entry = await register_card(client, card.xdp_serial, card.nqn, card.uuid)
            except IdentityConflict as error:
                errors.append(str(error))
                refused.add(card.xdp_serial)
                continue
            log.info("card registered", xdp=card.device, serial=entry.serial, join_seq=entry.join_seq)
        for card in changes.put:
            if card.xdp_serial not in refused and await write_card(client, card):
                log.info("card written", xdp=card.device, serial=card.xdp_serial, state=card.state)
        for device in changes.gone:
            if await delete_card(client, self._settings.host, device):
                log.warning("card removed", xdp=device, reason="the card CLI does not list it any more")
        if self._card_errors.changed("; ".join(errors)) and errors:
            log.error("cards with errors", reason="; ".join(errors))


def peers_of(picture: ClusterSnapshot, own_host: str) -> tuple[PeerHost, ...]:
    """The other enabled hosts, as a host remembers them."""
    return tuple(
        PeerHost(record.host, record.addresses["api"], record.addresses.get("etcd_client", ""))
        for record in picture.hosts
        if record.enabled and record.host != own_host and "api" in record.addresses
    )
