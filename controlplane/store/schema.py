"""Where each record lives in etcd (DESIGN.md, "Records in etcd").

Names that come from outside (hosts, devices, serials) are percent-encoded, so that no name can reach into
another record's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote_to_bytes

CLUSTER_PREFIX = b"/cluster/"
TARGETS_PREFIX = b"/targets/"
CONFIG_KEY = b"/cluster/config"
REGISTRY_PREFIX = b"/cluster/cards/"
STEP_KEY = b"/cluster/step"
LEADER_KEY = b"/leader"
FLEET_PREFIX = b"/fleet/"
FLEET_ENGINES_KEY = b"/fleet/engines"

RecordKind = Literal["config", "registry", "node", "card", "health"]
_TARGET_KINDS: dict[str, RecordKind] = {"cards": "card", "health": "health"}


@dataclass(frozen=True, slots=True)
class RecordKey:
    """What a key names: `host` is empty for config and registry, `name` is a device or a serial."""

    kind: RecordKind
    host: str = ""
    name: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.kind, self.host, self.name) if part)


def registry_key(serial: str) -> bytes:
    """`/cluster/cards/<serial>`."""
    return REGISTRY_PREFIX + _segment(serial, "serial")


def node_key(host: str) -> bytes:
    """`/targets/<host>/node`."""
    return host_prefix(host) + b"node"


def card_key(host: str, device: str) -> bytes:
    """`/targets/<host>/cards/<device>`."""
    return host_prefix(host) + b"cards/" + _segment(device, "device")


def health_key(host: str, device: str) -> bytes:
    """`/targets/<host>/health/<device>`."""
    return host_prefix(host) + b"health/" + _segment(device, "device")


def host_prefix(host: str) -> bytes:
    """`/targets/<host>/`."""
    return TARGETS_PREFIX + _segment(host, "host") + b"/"


def fleet_model_key(name: str) -> bytes:
    """`/fleet/models/<name>`."""
    return FLEET_PREFIX + b"models/" + _segment(name, "model")


def fleet_assignment_key(replica: str) -> bytes:
    """`/fleet/assignments/<replica>`."""
    return FLEET_PREFIX + b"assignments/" + _segment(replica, "replica")


def fleet_node_key(node: str) -> bytes:
    """`/fleet/nodes/<node>`."""
    return FLEET_PREFIX + b"nodes/" + _segment(node, "node")


def fleet_setbacks_key(replica: str) -> bytes:
    """`/fleet/setbacks/<replica>`."""
    return FLEET_PREFIX + b"setbacks/" + _segment(replica, "replica")


def parse_fleet_key(key: bytes) -> tuple[str, str] | None:
    """The kind ("models", "assignments", "nodes", "setbacks" or "engines") and name; None for another key."""
    if key == FLEET_ENGINES_KEY:
        return "engines", ""
    parts = key.split(b"/")
    if not key.startswith(FLEET_PREFIX) or len(parts) != 4 or not parts[3]:
        return None
    kind = parts[2].decode("utf-8", "replace")
    return (kind, _name(parts[3])) if kind in {"models", "assignments", "nodes", "setbacks"} else None


def parse_key(key: bytes) -> RecordKey | None:
    """What `key` names; None for a key that is no record (of a later version, the step, the election)."""
    if key == CONFIG_KEY:
        return RecordKey("config")
    parts = key.split(b"/")
    if key.startswith(REGISTRY_PREFIX) and len(parts) == 4 and parts[3]:
        return RecordKey("registry", "", _name(parts[3]))
    if not key.startswith(TARGETS_PREFIX):
        return None
    match [_name(part) for part in parts[2:]]:
        case [host, "node"] if host:
            return RecordKey("node", host)
        case [host, ("cards" | "health") as folder, device] if host and device:
            return RecordKey(_TARGET_KINDS[folder], host, device)
    return None


def _segment(name: str, what: str) -> bytes:
    if not name:
        raise ValueError(f"a record can't have an empty {what}")
    return quote(name, safe="").encode("ascii")


def _name(segment: bytes) -> str:
    return unquote_to_bytes(segment).decode("utf-8", "backslashreplace")
