"""What may go into a plan: records whose values no dataplane would take are set aside, each on its own.

A dataplane refuses a plan as a whole. One odd record of one host must not keep all other cards' changes
from every gateway, so it is treated like a record that can't be read: unknown, shown, and without effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from controlplane.base.card_names import is_nqn, is_serial, is_service_id, is_uuid
from controlplane.model.cards import CardRecord, ClusterSnapshot, RegistryEntry, UnreadableRecord

MAX_PATHS: Final = 16


def sound(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot without what no plan can hold; what was set aside is in `problems` and `unreadable`."""
    registry, registry_notes = _split_registry(snapshot.registry)
    cards, card_notes = _split_cards(snapshot.cards)
    notes = registry_notes + card_notes
    return replace(
        snapshot,
        registry=registry,
        cards=cards,
        problems=(*snapshot.problems, *(problem for problem, _ in notes)),
        unreadable=(*snapshot.unreadable, *(record for _, record in notes if record is not None)),
    )


# A sentence, and the record that is set aside for it; None where the record stays in use.
_Note = tuple[str, UnreadableRecord | None]


def _split_registry(entries: tuple[RegistryEntry, ...]) -> tuple[tuple[RegistryEntry, ...], list[_Note]]:
    good: list[RegistryEntry] = []
    notes: list[_Note] = []
    for entry in entries:
        wrong = _wrong_entry(entry)
        if wrong is None:
            good.append(entry if is_uuid(entry.uuid) else replace(entry, uuid=""))
        else:
            notes.append((f"registered card {entry.serial[:40]!r}: {wrong}", _registry(entry)))
    return tuple(good), notes


def _registry(entry: RegistryEntry) -> UnreadableRecord:
    return UnreadableRecord("registry", name=entry.serial)


def _wrong_entry(entry: RegistryEntry) -> str | None:
    if not is_serial(entry.serial):
        return "its serial number is not 1 to 20 printable characters"
    if not is_nqn(entry.nqn):
        return f"{entry.nqn[:80]!r} is not an NVMe qualified name"
    return None


def _split_cards(records: tuple[CardRecord, ...]) -> tuple[tuple[CardRecord, ...], list[_Note]]:
    good: list[CardRecord] = []
    notes: list[_Note] = []
    for record in records:
        where = f"{record.host} {record.device}"
        paths = tuple(path for path in record.paths if is_service_id(path.trsvcid))[:MAX_PATHS]
        if record.paths and not paths:
            wrong = f"{where}: none of its addresses has a port from 1 to 65535"
            notes.append((wrong, UnreadableRecord("card", record.host, record.device)))
            continue
        if paths != record.paths:
            notes.append((f"{where}: {len(record.paths) - len(paths)} of its addresses can't be used", None))
        known = record.uuid if is_uuid(record.uuid) else ""
        if known != record.uuid:
            notes.append((f"{where}: {record.uuid[:40]!r} is not a UUID, so any KV namespace will do", None))
        good.append(replace(record, paths=paths, uuid=known))
    return tuple(good), notes
