"""The ping exporter's targets file: the cluster service writes it, the ping exporter reads it.

`{"version": 1, "source": HOST, "targets": [{"host": HOST, "address": LITERAL}, …]}`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.base.addresses import AddressError, canonical_address

VERSION = 1
MAX_TARGETS = 256
MAX_BYTES = 1 << 18

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


class PingTargetsError(ValueError):
    """A targets file that can't be used; the message says what is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class PingTarget:
    """A data address of another host; `address` is a literal in canonical spelling."""

    host: str
    address: str


@dataclass(frozen=True, slots=True)
class PingTargets:
    """Whom the host `source` pings."""

    source: str
    targets: tuple[PingTarget, ...]


def ping_targets(source: str, targets: Iterable[PingTarget]) -> PingTargets:
    """Targets in one order, each once, at most MAX_TARGETS. Raises PingTargetsError."""
    unique = tuple(sorted(set(targets)))
    if len(unique) > MAX_TARGETS:
        raise PingTargetsError(f"{len(unique)} targets; at most {MAX_TARGETS} are pinged")
    return PingTargets(source, unique)


def encode_targets(targets: PingTargets) -> bytes:
    """The file's content; equal targets are equal bytes."""
    listed = [{"host": target.host, "address": target.address} for target in targets.targets]
    document = {"version": VERSION, "source": targets.source, "targets": listed}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def parse_targets(content: bytes) -> PingTargets:
    """Inverse of `encode_targets`; the whole file counts or none of it. Raises PingTargetsError."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise PingTargetsError("is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise PingTargetsError(f"is not a targets file of version {VERSION}")
    listed = document.get("targets")
    if not isinstance(listed, list):
        raise PingTargetsError("has no list 'targets'")
    return ping_targets(_host(document.get("source"), "source"), map(_target, listed))


def _target(entry: Any) -> PingTarget:
    if not isinstance(entry, dict) or not isinstance(entry.get("address"), str):
        raise PingTargetsError("has a target without an address")
    try:
        address = canonical_address(entry["address"])
    except AddressError as error:
        raise PingTargetsError(f"has a target whose address is wrong: {error}") from None
    return PingTarget(_host(entry.get("host"), "host"), address)


def _host(value: Any, name: str) -> str:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise PingTargetsError(f"has a {name!r} that is not a host name: {value!r:.60}")
    return value
