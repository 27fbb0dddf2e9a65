"""Records as JSON: written in one canonical form, read strictly.

Unknown fields are ignored, so that a newer version may add some; a missing field, a wrong type or a value
out of range is a RecordError whose text says which field and what it must be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from controlplane.base.addresses import AddressError, canonical_address, parse_port
from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
)
from controlplane.store.errors import StoreError

T = TypeVar("T")
TRANSPORTS: tuple[Literal["tcp"], Literal["rdma"]] = ("tcp", "rdma")


class RecordError(StoreError):
    """A record that can't be understood."""


def encode(fields: Mapping[str, Any]) -> bytes:
    """Canonical JSON: sorted keys, no spaces, so that equal records are equal bytes. Raises RecordError."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"not written: {ascii(text[: error.start + 1])[-60:]} is no Unicode text") from None


class Fields:
    """The fields of one JSON object, read by name and type. Every reader raises RecordError."""

    def __init__(self, value: bytes | Mapping[str, Any]) -> None:
        self._values: Mapping[str, Any] = _object(value) if isinstance(value, bytes) else value

    def text(self, name: str, *, empty: bool = False) -> str:
        """A string, not empty unless `empty`."""
        value = self._typed(name, str, "a text")
        if not value and not empty:
            raise RecordError(f"{name} is empty")
        return _sendable(name, value)

    def optional_text(self, name: str) -> str:
        """A string that older writers did not write; empty when it is missing."""
        return self.text(name, empty=True) if name in self._values else ""

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self._typed(name, int, "a whole number")
        if not low <= value <= high:
            raise RecordError(f"{name} is {value!r:.60}, which is not in {low}..{high}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int:
        """A whole number that older writers did not write; 0 when it is missing."""
        return self.integer(name, low, high) if name in self._values else 0

    def number(self, name: str) -> float:
        """A finite number."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RecordError(f"{name} is {value!r:.60}, not a number")
        try:
            number = float(value)
        except OverflowError:
            raise RecordError(f"{name} is {value!r:.60}…, too large a number") from None
        if not math.isfinite(number):
            raise RecordError(f"{name} is {value!r}, not a number")
        return number

    def flag(self, name: str) -> bool:
        """`true` or `false`."""
        return self._typed(name, bool, "true or false")

    def texts(self, name: str) -> dict[str, str]:
        """An object of strings."""
        value = self._typed(name, dict, "an object")
        if not all(isinstance(item, str) for item in value.values()):
            raise RecordError(f"{name} has a value that is not a text")
        return {_sendable(name, key): _sendable(name, item) for key, item in value.items()}

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self._typed(name, list, "a list")
        if not all(type(item) is int for item in value):
            raise RecordError(f"{name} has an item that is not a whole number")
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._typed(name, list, "a list")
        if not all(isinstance(item, str) for item in value):
            raise RecordError(f"{name} has an item that is not a text")
        return tuple(_sendable(name, item) for item in value)

    def object(self, name: str) -> Fields:
        """An object."""
        return Fields(self._typed(name, dict, "an object"))

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        value = self._typed(name, list, "a list")
        if not all(isinstance(item, dict) for item in value):
            raise RecordError(f"{name} has an item that is not an object")
        return [Fields(item) for item in value]

    def health(self, name: str) -> Health:
        """0, 1 or 2."""
        return Health(self.integer(name, 0, 2))

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise RecordError(f"{name} is missing")
        return self._values[name]

    def _typed(self, name: str, kind: type[T], what: str) -> T:
        value = self._get(name)
        if type(value) is not kind:
            raise RecordError(f"{name} is {value!r:.60}, not {what}")
        return value


def encode_config(config: ClusterConfig) -> bytes:
    """`/cluster/config`."""
    return encode({"name": config.name, "created": config.created, "uuid": config.uuid})


def decode_config(value: bytes) -> ClusterConfig:
    """Inverse of `encode_config`. Raises RecordError."""
    fields = Fields(value)
    return ClusterConfig(fields.text("name"), fields.number("created"), fields.text("uuid"))


def encode_registry(entry: RegistryEntry) -> bytes:
    """`/cluster/cards/<serial>`."""
    return encode({"serial": entry.serial, "nqn": entry.nqn, "uuid": entry.uuid, "join_seq": entry.join_seq})


def decode_registry(serial: str, value: bytes) -> RegistryEntry:
    """Inverse of `encode_registry`; `serial` is the key's. Raises RecordError."""
    fields = Fields(value)
    if fields.text("serial") != serial:
        raise RecordError(f"serial is {fields.text('serial')!r}, not that of its key")
    return RegistryEntry(
        serial, fields.text("nqn"), fields.text("uuid", empty=True), fields.integer("join_seq", 1, 2**63 - 1)
    )


def encode_host(record: HostRecord) -> bytes:
    """`/targets/<host>/node`."""
    return encode({"enabled": int(record.enabled), "witness": record.witness, "addresses": record.addresses})


def decode_host(host: str, value: bytes) -> HostRecord:
    """Inverse of `encode_host`. Raises RecordError."""
    fields = Fields(value)
    return HostRecord(
        host, fields.integer("enabled", 0, 1) == 1, fields.flag("witness"), fields.texts("addresses")
    )


def encode_card(record: CardRecord) -> bytes:
    """`/targets/<host>/cards/<device>`."""
    paths = [{"transport": p.transport, "traddr": p.traddr, "trsvcid": p.trsvcid} for p in record.paths]
    return encode(
        {
            "xdp_serial": record.xdp_serial,
            "nqn": record.nqn,
            "uuid": record.uuid,
            "paths": paths,
            "state": record.state,
        }
    )


def decode_card(host: str, device: str, value: bytes) -> CardRecord:
    """Inverse of `encode_card`; addresses come out in canonical spelling. Raises RecordError."""
    fields = Fields(value)
    return CardRecord(
        host,
        device,
        fields.text("xdp_serial"),
        fields.text("nqn"),
        fields.text("uuid", empty=True),
        tuple(map(_path, fields.objects("paths"))),
        fields.text("state"),
    )


def encode_health(record: HealthRecord) -> bytes:
    """`/targets/<host>/health/<device>`."""
    return encode(
        {
            "health_xdp": int(record.health_xdp),
            "last_known": int(record.last_known),
            "since": record.since,
            "reason": record.reason,
            "xdp_serial": record.xdp_serial,
        }
    )


def decode_health(host: str, device: str, value: bytes) -> HealthRecord:
    """Inverse of `encode_health`. Raises RecordError."""
    fields = Fields(value)
    return HealthRecord(
        host,
        device,
        fields.text("xdp_serial"),
        fields.health("health_xdp"),
        fields.health("last_known"),
        fields.number("since"),
        fields.text("reason", empty=True),
    )


def _path(fields: Fields) -> CardPath:
    name = fields.text("transport")
    transport = next((known for known in TRANSPORTS if known == name), None)
    if transport is None:
        raise RecordError(f"transport is {name!r}, not one of {', '.join(TRANSPORTS)}")
    trsvcid = fields.text("trsvcid")
    try:
        parse_port(trsvcid)
        return CardPath(transport, canonical_address(fields.text("traddr")), trsvcid)
    except AddressError as error:
        raise RecordError(str(error)) from None


def _sendable(name: str, text: str) -> str:
    """The text itself; half a surrogate pair, which JSON can hold, is in no message and in no log."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecordError(f"{name} is {text!a:.60}, which is no Unicode text") from None
    return text


def _object(value: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise RecordError("it is not a JSON object")
    return parsed
