"""Card discovery, the pure part: a good answer of the card CLI and what etcd has in, writes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from controlplane.base.card_cli import ListedCard
from controlplane.model.card_check import CardCheck, Judgement, judge_serial
from controlplane.model.cards import CardPath, CardRecord, RegistryEntry


@dataclass(frozen=True, slots=True)
class CardChanges:
    """Records of this host to put, devices to delete, serials to register, errors, and each card's check."""

    put: tuple[CardRecord, ...]
    gone: tuple[str, ...]
    register: tuple[CardRecord, ...]
    errors: tuple[str, ...]
    checks: tuple[CardCheck, ...] = ()


def to_record(host: str, card: ListedCard, serials: Mapping[str, str]) -> CardRecord:
    """Return the record of a listed card; `serials` (AWC_XDP_SERIALS) overrides its serial by device."""
    return CardRecord(
        host=host,
        device=card.device,
        xdp_serial=serials.get(card.device, card.serial),
        nqn=card.nqn,
        uuid=card.uuid,
        paths=tuple(_path(path.transport, path.traddr, path.trsvcid) for path in card.paths),
        state=card.state,
    )


def _path(transport: str, traddr: str, trsvcid: str) -> CardPath:
    return CardPath(cast(Literal["tcp", "rdma"], transport), traddr, trsvcid)


def plan_cards(
    host: str,
    listed: Iterable[CardRecord],
    written: Iterable[CardRecord],
    registry: Iterable[RegistryEntry],
    unreadable_devices: frozenset[str] = frozenset(),
    judge: Callable[[CardRecord], Judgement] | None = None,
    may_register: Callable[[CardRecord], bool] = lambda _: True,
) -> CardChanges:
    """Compare what the host has with what etcd says it has.

    Only called with a complete, good answer of the card CLI: a device that is missing from it is gone. A
    record that could not be read is written again when its device is listed and removed when it is not. A
    serial that is listed twice, or is registered with another NQN, or whose NQN is registered with another
    serial, is an error and is not written: what is there stays in use. `judge` says what the card itself
    answered: a serial that it contradicts is not written, and one that is written is withdrawn; a card that
    is not registered and did not answer waits until `may_register` it.
    """
    plan = _Plan(
        before={record.device: record for record in written if record.host == host},
        by_serial={entry.serial: entry for entry in registry},
        judge=judge or (lambda record: judge_serial(record, {})),
        may_register=may_register,
    )
    for record in sorted(listed, key=lambda card: (card.state != "running", card.device)):
        plan.add(record)
    gone = (plan.before.keys() | unreadable_devices) - plan.present | plan.withdrawn
    return CardChanges(
        tuple(plan.put),
        tuple(sorted(gone)),
        tuple(plan.register),
        tuple(sorted(plan.errors)),
        tuple(sorted(plan.checks, key=lambda check: check.device)),
    )


@dataclass(slots=True)
class _Plan:
    """What has been decided so far."""

    before: dict[str, CardRecord]
    by_serial: dict[str, RegistryEntry]
    judge: Callable[[CardRecord], Judgement]
    may_register: Callable[[CardRecord], bool]
    put: list[CardRecord] = field(default_factory=list)
    register: list[CardRecord] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    checks: list[CardCheck] = field(default_factory=list)
    owner: dict[str, str] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)

    def add(self, record: CardRecord) -> None:
        """Decide about one listed card."""
        self.present.add(record.device)
        judged = self.judge(record)
        problem = self._duplicate(record)
        if problem:
            self.errors.append(problem)
            self.checks.append(replace(judged.check, state="duplicate", text=problem))
            return
        self.checks.append(judged.check)
        if judged.check.state in {"mismatch", "duplicate"}:
            self.errors.append(f"{record.device}: {judged.check.text}")
        if judged.check.state == "duplicate" and not self._is_written(record):
            return  # the other one was first
        if judged.check.state == "mismatch" and not judged.usable:
            self._withdraw(record)
            return
        known = record.xdp_serial in self.by_serial
        if not known and judged.check.state != "checked" and not self.may_register(record):
            return
        self._write(replace(record, paths=judged.usable), known)

    def _write(self, record: CardRecord, known: bool) -> None:
        self.owner[record.xdp_serial] = record.device
        if not known:
            self.register.append(record)
            self.by_serial[record.xdp_serial] = RegistryEntry(record.xdp_serial, record.nqn, record.uuid, 0)
        if self.before.get(record.device) != record:
            self.put.append(record)

    def _withdraw(self, record: CardRecord) -> None:
        """Take back a record that claims what the card contradicts; one with another serial may be right."""
        if self._is_written(record):
            self.withdrawn.add(record.device)

    def _is_written(self, record: CardRecord) -> bool:
        present = self.before.get(record.device)
        return present is not None and present.xdp_serial == record.xdp_serial

    def _duplicate(self, record: CardRecord) -> str:
        serial = record.xdp_serial
        if serial in self.owner:
            device = self.owner[serial]
            return f"{record.device} and {device} both have serial {serial}; {record.device} is not used"
        entry = self.by_serial.get(serial)
        if entry is not None and entry.nqn != record.nqn:
            return (
                f"{record.device} has the registered serial {serial} but another NQN ({record.nqn}, not "
                f"{entry.nqn}); it is not used: correct AWC_XDP_SERIALS, or forget the old card with "
                f"clustercli cards forget {serial}"
            )
        other = next((known for known in self.by_serial.values() if known.nqn == record.nqn), None)
        if other is not None and other.serial != serial:
            return (
                f"{record.device} has the registered NQN {record.nqn} but another serial ({serial}, not "
                f"{other.serial}); it is not used: correct AWC_XDP_SERIALS, or, when {other.serial} was "
                f"wrong, forget it with clustercli cards forget {other.serial}"
            )
        return ""
