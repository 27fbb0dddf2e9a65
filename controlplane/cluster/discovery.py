"""What a host says about itself: its cards, every cycle, and its own record; and what it notes of the others.

A card CLI that hangs, fails or prints garbage means "unknown": nothing is written and nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controlplane.base.card_cli import CardCli, CardCliError, ListedCard
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.cluster.card_checker import CardChecker
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.discovery_plan import CardChanges, plan_cards, to_record
from controlplane.cluster.event_log import EventLog
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.membership_file import Membership, PeerHost
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.card_check import Answer, CardCheck, Judgement, judge_serial, judge_twin
from controlplane.model.cards import CardPath, CardRecord, ClusterSnapshot, HostRecord
from controlplane.store.checks import write_checks
from controlplane.store.codec import RecordError
from controlplane.store.errors import StoreError
from controlplane.store.hosts import update_host
from controlplane.store.registry import IdentityConflict, register_card
from controlplane.store.writes import delete_card, write_card

# How long a cycle waits for cards that are being asked.
CHECK_SECONDS = 1.0
GONE = "the card CLI does not list it any more, or its serial is contradicted"

log = get_logger("discovery")


class Discovery:
    """One host's reports to the cluster."""

    def __init__(
        self,
        settings: ClusterSettings,
        supervisor: MemberSupervisor,
        link: EtcdLink,
        cli: CardCli,
        checker: CardChecker,
        events: EventLog,
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._link = link
        self._cli = cli
        self._checker = checker
        self._events = events
        self._cli_state = OnChange()
        self._etcd_state = OnChange()
        self._card_errors = OnChange()
        self._checks: tuple[CardCheck, ...] | None = None

    async def cycle(self) -> None:
        """Ask the card CLI and bring etcd's records of this host up to date. Raises nothing of etcd's."""
        membership = self._supervisor.membership
        if membership is None or membership.phase != "member":
            return
        cards = await self._list_cards()
        try:
            await self._report(membership, cards)
        except (StoreError, RequestError, RecordError) as error:
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
            listed = [to_record(own.host, card, self._settings.xdp_serials) for card in cards]
            twins = twins_of(listed, picture)
            self._checker.attend([*listed, *twins.values()])
            await self._checker.settle(min(CHECK_SECONDS, self._settings.cycle_seconds))
            await self._write(self._plan(picture, listed, twins))

    def _own_record(self, present: HostRecord | None) -> HostRecord | None:
        """Keep the addresses right; whether the host is enabled is not the host's to say."""
        if present is None or not present.enabled:
            return None
        return replace(present, witness=self._settings.witness, addresses=self._settings.addresses)

    def _plan(
        self, picture: ClusterSnapshot, listed: list[CardRecord], twins: Mapping[str, CardRecord]
    ) -> CardChanges:
        host = self._settings.host
        doubtful = {r.name for r in picture.unreadable if r.kind == "card" and r.host == host}
        return plan_cards(
            host,
            listed,
            picture.cards,
            picture.registry,
            frozenset(doubtful),
            lambda record: self._judge(record, twins.get(record.xdp_serial)),
            self._may_register,
        )

    def _judge(self, record: CardRecord, twin: CardRecord | None) -> Judgement:
        answers = self._checker.answers(record)
        judged = judge_serial(record, answers)
        if twin is None:
            return judged
        theirs = self._checker.answers(twin)
        proof = judge_twin(record, _first(answers), twin, _first(theirs))
        return (
            replace(judged, check=replace(judged.check, state="duplicate", text=proof)) if proof else judged
        )

    def _may_register(self, record: CardRecord) -> bool:
        """A card that can't be asked is let in after a while; one that does not run, when it runs."""
        patience = self._settings.card_check_seconds
        return patience == 0 or (record.state == "running" and self._checker.waited(record) >= patience)

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
            self._events.note("card", entry.serial, f"joined as {card.device} of {card.host}")
        for card in changes.put:
            if card.xdp_serial not in refused and await write_card(client, card):
                log.info("card written", xdp=card.device, serial=card.xdp_serial, state=card.state)
        for device in changes.gone:
            if await delete_card(client, self._settings.host, device):
                log.warning("card removed", xdp=device, reason=GONE)
                self._events.note("card", device, f"{device} of {self._settings.host} is gone: {GONE}")
        if self._card_errors.changed("; ".join(errors)) and errors:
            log.error("cards with errors", reason="; ".join(errors))
        await self._write_checks(changes.checks)

    async def _write_checks(self, checks: tuple[CardCheck, ...]) -> None:
        """Show what the cards said; each change is an event, and one that needs someone is an alarm."""
        if checks == self._checks:
            return
        for check in await write_checks(self._link.client, self._settings.host, checks):
            alarming = check.state in {"mismatch", "duplicate"}
            tell = log.error if alarming else log.info
            tell(
                "card check", xdp=check.device, serial=check.xdp_serial, state=check.state, reason=check.text
            )
            outcome = f"a {check.state}" if alarming else check.state
            why = f": {check.text}" if check.text else ""
            text = f"{check.device} of {check.host} is {outcome}{why}"
            self._events.note("alarm" if alarming else "card", check.xdp_serial, text)
        self._checks = checks


def peers_of(picture: ClusterSnapshot, own_host: str) -> tuple[PeerHost, ...]:
    """The other enabled hosts, as a host remembers them."""
    return tuple(
        PeerHost(record.host, record.addresses["api"], record.addresses.get("etcd_client", ""))
        for record in picture.hosts
        if record.enabled and record.host != own_host and "api" in record.addresses
    )


def twins_of(listed: Iterable[CardRecord], picture: ClusterSnapshot) -> dict[str, CardRecord]:
    """By serial: the running card of another enabled host that has the serial and NQN of a listed one."""
    enabled = {record.host for record in picture.hosts if record.enabled}
    own = {(record.xdp_serial, record.nqn): record.host for record in listed if record.state == "running"}
    return {
        card.xdp_serial: card
        for card in picture.cards
        if card.state == "running"
        and card.host in enabled
        and own.get((card.xdp_serial, card.nqn), card.host) != card.host
    }


def _first(answers: Mapping[CardPath, Answer]) -> Answer | None:
    """The first address that gave a serial."""
    return next((answer for _, answer in sorted(answers.items()) if answer.serial), None)
