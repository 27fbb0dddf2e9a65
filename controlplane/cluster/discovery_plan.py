"""Card discovery, the pure part: a good answer of the card CLI and what etcd has in, writes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from controlplane.base.card_cli import ListedCard
from controlplane.model.cards import CardPath, CardRecord, RegistryEntry


@dataclass(frozen=True, slots=True)
class CardChanges:
    """Records of this host to put, devices to delete, serials to register, and errors to show."""

    put: tuple[CardRecord, ...]
    gone: tuple[str, ...]
    register: tuple[CardRecord, ...]
    errors: tuple[str, ...]


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
) -> CardChanges:
    """Compare what the host has with what etcd says it has.

    Only called with a complete, good answer of the card CLI: a device that is missing from it is gone. A
    record that could not be read is written again when its device is listed and removed when it is not. A
    serial that is listed twice, or registered with another NQN, is an error and is not written:
    what is there stays in use.
    """
    known = {entry.serial: entry for entry in registry}
    before = {record.device: record for record in written if record.host == host}
    put: list[CardRecord] = []
    register: list[CardRecord] = []
    errors: list[str] = []
    owner: dict[str, str] = {}
    present: set[str] = set()
    for record in sorted(listed, key=lambda card: (card.state != "running", card.device)):
        present.add(record.device)
        problem = _problem(record, owner, known.get(record.xdp_serial))
        if problem:
            errors.append(problem)
            continue
        owner[record.xdp_serial] = record.device
        if record.xdp_serial not in known:
            register.append(record)
        if before.get(record.device) != record:
            put.append(record)
    gone = sorted((before.keys() | unreadable_devices) - present)
    return CardChanges(tuple(put), tuple(gone), tuple(register), tuple(sorted(errors)))


def _problem(record: CardRecord, owner: Mapping[str, str], entry: RegistryEntry | None) -> str:
    serial = record.xdp_serial
    if serial in owner:
        return f"{record.device} and {owner[serial]} both have serial {serial}; {record.device} is not used"
    if entry is not None and entry.nqn != record.nqn:
        return (
            f"{record.device} has the registered serial {serial} but another NQN ({record.nqn}, not "
            f"{entry.nqn}); it is not used: correct AWC_XDP_SERIALS, or forget the old card with remove_node "
            "--forget-cards"
        )
    return ""
