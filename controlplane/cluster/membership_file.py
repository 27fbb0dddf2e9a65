"""What a host knows of its own membership, kept outside etcd's data so that it survives their loss.

`member.json` in the state directory: absent while the host is in no cluster. Replaced atomically, mode 0600.
It ends with a checksum of what it says: a file that was torn or mixed by a failing disk is refused, and never
makes a host start in a wrong place.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

FILE_NAME = "member.json"
VERSION = 2

Phase = Literal["creating", "joining", "member"]


class MembershipFileError(Exception):
    """The file can't be read or understood; the message says what to do."""


@dataclass(frozen=True, slots=True)
class PeerHost:
    """Another host of the cluster: its name, cluster API (HOST:PORT) and etcd client URL."""

    host: str
    api: str
    client_url: str


@dataclass(frozen=True, slots=True)
class Membership:
    """The host's place in its cluster.

    `creating`: create_cluster began here, and the cluster's first records may not be written. `joining`: the
    member was added and may be started for the first time. `member`: all is done. Ids are etcd's; 0 while
    unknown. `host` and `peer_url` are those that the member has in etcd. `fresh`: the place was just given,
    and whatever lies in the data directory is older than it.
    """

    phase: Phase
    host: str
    peer_url: str
    cluster_uuid: str
    cluster_name: str
    initial_cluster: str
    member_id: int = 0
    etcd_cluster_id: int = 0
    peers: tuple[PeerHost, ...] = ()
    fresh: bool = False

    @property
    def has_run(self) -> bool:
        """Whether the member ever answered in this place."""
        return self.etcd_cluster_id != 0

    def ran_as(self, member_id: int, etcd_cluster_id: int) -> Membership:
        """Return this membership as one whose member has run under these ids."""
        phase: Phase = "creating" if self.phase == "creating" else "member"
        return replace(self, phase=phase, member_id=member_id, etcd_cluster_id=etcd_cluster_id)


class _Wrong(ValueError):
    """A file that is not what this version writes."""


def _encode(membership: Membership) -> str:
    document = {"version": VERSION, **asdict(membership)}
    return json.dumps({**document, "checksum": _checksum(document)}, indent=1) + "\n"


def _decode(text: str) -> Membership:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise _Wrong("it is not an object")
    if document.get("version") != VERSION:
        raise _Wrong(f"it is not of version {VERSION}")
    if document.pop("checksum", None) != _checksum(document):
        raise _Wrong("its checksum does not match: it was cut, changed by hand or damaged")
    del document["version"]
    peers = tuple(PeerHost(**peer) for peer in document.pop("peers"))
    return Membership(**document, peers=peers)


def _checksum(document: dict[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


class MembershipFile:
    """Reads and writes the file below one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME

    def load(self) -> Membership | None:
        """Return what is known, or None when the host is in no cluster. Raises MembershipFileError."""
        try:
            return _decode(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise MembershipFileError(
                f"{self._path} can't be used ({error}): restore it, or remove it and run clustercli "
                "add_node on this host (its etcd data are set aside then)"
            ) from error

    def save(self, membership: Membership) -> None:
        """Replace the file; it is on the disk when this returns. Raises OSError: the old one holds then."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_encode(membership))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        self._sync_directory()

    def remove(self) -> None:
        """Forget the membership: the host is in no cluster from now on."""
        self._path.unlink(missing_ok=True)
        self._sync_directory()

    def _sync_directory(self) -> None:
        if not self._path.parent.exists():
            return
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
