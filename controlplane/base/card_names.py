"""What names a card and its address: serial number, NVMe qualified name, UUID, service id; one rule for each.

Pure, so that the domain model may ask here as well.
"""

from __future__ import annotations

import re
import uuid

from controlplane.base.addresses import AddressError, canonical_port

_SERIAL = re.compile(r"[!-~]{1,20}")
_NQN = re.compile(r"nqn\.[!-~]{1,219}")


def is_serial(text: str) -> bool:
    """Whether `text` is an NVMe serial number: 1 to 20 printable ASCII characters, none of them blank."""
    return _SERIAL.fullmatch(text) is not None


def is_nqn(text: str) -> bool:
    """Whether `text` is an NVMe qualified name: "nqn." and more, at most 223 printable ASCII characters."""
    return _NQN.fullmatch(text) is not None


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID in the canonical form, in lower or upper case."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def is_service_id(text: str) -> bool:
    """Whether `text` is a TCP port from 1 to 65535 as NVMe-oF writes it: decimal, without leading zeros."""
    try:
        return canonical_port(text) == text
    except AddressError:
        return False
