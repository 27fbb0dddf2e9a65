"""Does a card say the serial that its host's card CLI says? Pure: from the card's answers to a verdict.

The serial in etcd must be that of the NVMe-oF subsystem: gateways connect by it. So a new or changed card is
asked itself before its serial is registered, since a registered serial holds a slot for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controlplane.model.cards import CardPath, CardRecord

CheckState = Literal["checked", "unchecked", "mismatch", "duplicate"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from one address: the subsystem's serial and namespaces, or why nothing did."""

    serial: str = ""
    multi_controller: bool = False
    namespaces: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class CardCheck:
    """The verdict on one listed card, as the cluster shows it; `text` says why and what to do."""

    host: str
    device: str
    xdp_serial: str
    nqn: str
    state: CheckState
    text: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and the addresses that a gateway may use: those where another serial answers are not."""

    check: CardCheck
    usable: tuple[CardPath, ...]


def judge_serial(record: CardRecord, answers: Mapping[CardPath, Answer]) -> Judgement:
    """Compare a listed card with what its addresses answered; one without an answer yet is unchecked."""
    other = {path: answer for path, answer in answers.items() if answer.serial not in {"", record.xdp_serial}}
    usable = tuple(path for path in record.paths if path not in other)
    if other:
        proven = tuple(path for path in usable if path in answers and answers[path].serial)
        return Judgement(_check(record, "mismatch", _mismatch(record, other, proven)), proven)
    if any(answer.serial for answer in answers.values()):
        return Judgement(_check(record, "checked", ""), usable)
    return Judgement(_check(record, "unchecked", _silence(record, answers)), usable)


def judge_twin(record: CardRecord, own: Answer | None, other: CardRecord, theirs: Answer | None) -> str:
    """Why `other`, which has the same serial and NQN, is another card; empty when that is not proven.

    Both must have answered, and be controllers of one subsystem: it says that it has several (CMIC), and
    its namespaces are the same from both sides. A card that moved leaves a record that no one answers for.
    """
    if own is None or theirs is None or not own.serial or own.serial != theirs.serial:
        return ""
    if own.multi_controller and theirs.multi_controller and own.namespaces == theirs.namespaces:
        return ""
    return (
        f"serial {record.xdp_serial} is also that of {other.host} {other.device}, which is another card: "
        "give one of them a serial of its own; the first that was in use stays in use"
    )


def _check(record: CardRecord, state: CheckState, text: str) -> CardCheck:
    return CardCheck(record.host, record.device, record.xdp_serial, record.nqn, state, text)


def _mismatch(record: CardRecord, other: Mapping[CardPath, Answer], proven: tuple[CardPath, ...]) -> str:
    """Beside a wrong address, only those count that gave the right serial."""
    path, answer = min(other.items())
    where = f"{path.transport}:{path.traddr}:{path.trsvcid}"
    told = (
        f"the card CLI says serial {record.xdp_serial}, the NVMe-oF subsystem at {where} says {answer.serial}"
    )
    if proven:
        return f"{told}; that address is not used: correct the card's addresses"
    return (
        f"{told}; it is not used: set AWC_XDP_SERIALS={record.device}:{answer.serial} in "
        "/etc/adp/awide-cluster/adpcli_compat.env and restart awide-cluster"
    )


def _silence(record: CardRecord, answers: Mapping[CardPath, Answer]) -> str:
    if record.state != "running":
        return "it does not run, so its serial can't be asked"
    errors = [answer.error for _, answer in sorted(answers.items()) if answer.error]
    if not record.paths:
        return "it has no address, so its serial can't be asked"
    return f"its serial can't be asked: {errors[0]}" if errors else "its serial is being asked"
