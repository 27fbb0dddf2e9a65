"""The card CLI: what a host's card stack says about its cards (`akv-softcard list --json` or the hardware's).

A call that fails in any way raises CardCliError: what can't be read is unknown, never "no cards".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.base.addresses import AddressError, canonical_address, canonical_port
from controlplane.base.bounded_command import CommandError, run_bounded
from controlplane.base.card_names import is_serial

MAX_OUTPUT_BYTES = 1 << 20
MAX_CARDS = 256

_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class CardCliError(Exception):
    """The card CLI gave no usable answer. The text says why and is the same while the cause is the same."""


@dataclass(frozen=True, slots=True, order=True)
class ListedPath:
    """One NVMe-oF address of a card; `traddr` is an address literal in canonical spelling."""

    transport: str
    traddr: str
    trsvcid: str


@dataclass(frozen=True, slots=True)
class ListedCard:
    """One card of the list. `device` is the slot's name (xdpN); `state` is "running" or "stopped"."""

    device: str
    serial: str
    nqn: str
    uuid: str
    state: str
    paths: tuple[ListedPath, ...]


def _text(record: dict[str, Any], key: str, limit: int = 256) -> str:
    value = record.get(key)
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise CardCliError(f"a card's {key!r} is not a text of at most {limit} characters")
    return value


def _path(record: Any) -> ListedPath:
    if not isinstance(record, dict):
        raise CardCliError("a card's address is not an object")
    transport, port = _text(record, "transport"), str(record.get("trsvcid"))
    if transport not in {"tcp", "rdma"}:
        raise CardCliError(f"a card's transport is {transport!r}, not tcp or rdma")
    try:
        service = canonical_port(port)
    except AddressError:
        raise CardCliError(f"a card's trsvcid is {port[:20]!r}, not a port number") from None
    try:
        return ListedPath(transport, canonical_address(_text(record, "traddr")), service)
    except AddressError as error:
        raise CardCliError(f"a card's traddr: {error}") from None


def _card(record: Any) -> ListedCard:
    if not isinstance(record, dict):
        raise CardCliError("a card of the list is not an object")
    device, serial, nqn = _text(record, "id"), _text(record, "serial").strip(), _text(record, "nqn", 223)
    if not _DEVICE.fullmatch(device):
        raise CardCliError(f"a card's id is {device!r}, not a device name")
    if not is_serial(serial) or "/" in serial:
        raise CardCliError(
            f"the serial of {device} is {serial!r}, not 1 to 20 printable characters without '/'"
        )
    if not nqn.startswith("nqn."):
        raise CardCliError(f"the NQN of {device} is {nqn!r}; it must begin with 'nqn.'")
    state = _text(record, "state")
    if state not in {"running", "stopped"}:
        raise CardCliError(f"the state of {device} is {state!r}, not running or stopped")
    addresses = record.get("addresses")
    if not isinstance(addresses, list):
        raise CardCliError(f"the addresses of {device} are not a list")
    uuid = "" if record.get("uuid") is None else _text(record, "uuid")
    return ListedCard(device, serial, nqn, uuid, state, tuple(sorted({_path(entry) for entry in addresses})))


def parse_card_list(text: str) -> tuple[ListedCard, ...]:
    """Return the cards of the CLI's JSON (`{"cards": [...]}`), sorted by device. Raises CardCliError.

    The whole answer counts or none of it: one bad card makes the list unusable, since a card left out would
    be taken for one that is gone.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CardCliError("its output is not JSON") from error
    records = document.get("cards") if isinstance(document, dict) else None
    if not isinstance(records, list):
        raise CardCliError("its output has no list 'cards'")
    if len(records) > MAX_CARDS:
        raise CardCliError(f"its output lists more than {MAX_CARDS} cards")
    cards = sorted((_card(record) for record in records), key=lambda card: card.device)
    if len({card.device for card in cards}) != len(cards):
        raise CardCliError("its output lists one device twice")
    return tuple(cards)


@dataclass(frozen=True, slots=True)
class CardCli:
    """The command that lists cards. `timeout` is the deadline of one call in seconds."""

    command: Sequence[str]
    timeout: float = 5.0

    async def list_cards(self) -> tuple[ListedCard, ...]:
        """Run the command once and return its cards. Raises CardCliError; no process is left behind."""
        try:
            done = await run_bounded(self.command, self.timeout, MAX_OUTPUT_BYTES)
        except CommandError as error:
            raise CardCliError(str(error)) from error
        if done.code != 0:
            raise CardCliError(f"{self.command[0]} exited with code {done.code}")
        try:
            return parse_card_list(done.output.decode("utf-8"))
        except (CardCliError, UnicodeDecodeError) as error:
            reason = "its output is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise CardCliError(f"{self.command[0]}: {reason}") from error
