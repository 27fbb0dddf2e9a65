"""What runs the host's etcd member: one interface, for a child process or a container."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from controlplane.base.logging import get_logger

LOG_FILE, OUTPUT_FILE = "etcd.log", "etcd.out"
# etcd's own default keeps every rotated file for ever.
LOG_MEGABYTES, LOG_BACKUPS = 16, 4
STOP_SECONDS = 3.0
# Two log files of a new member, and some.
KEEP_BYTES = 256 << 20

log = get_logger("etcd-runner")


@dataclass(frozen=True, slots=True)
class EtcdStart:
    """One start of the host's member. etcd reads `initial_cluster`, `state` and `token` only without data.

    `flags` are added to the command line, or replace what stands there, and `reads` are the directories of
    the files that they name: where TLS comes in.
    """

    name: str
    client_url: str
    peer_url: str
    data_dir: Path
    log_dir: Path
    initial_cluster: str
    state: Literal["new", "existing"]
    token: str
    quota_bytes: int = 1 << 30
    flags: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class EtcdExit:
    """How the member ended: exit code (negative: the signal) and, in words without times, why."""

    code: int
    last_words: str


class EtcdRunner(Protocol):
    """Starts, watches and stops one etcd member."""

    @property
    def running(self) -> bool:
        """Whether the member was started and has not ended."""

    async def start(self, start: EtcdStart) -> None:
        """Start the member; only when none runs. Raises OSError, EtcdBinaryError or EtcdRunnerError."""

    async def wait(self) -> EtcdExit:
        """Wait for the member's end."""

    async def stop(self) -> None:
        """End the member and wait for it: asked first, killed after STOP_SECONDS. No-op when none runs."""


class EtcdRunnerError(RuntimeError):
    """The member can't be run in the chosen way; the message says why and what to do."""


def etcd_arguments(start: EtcdStart) -> list[str]:
    """Return etcd's command line without the program."""
    flags = {
        "name": start.name,
        "data-dir": str(start.data_dir),
        "listen-client-urls": start.client_url,
        "advertise-client-urls": start.client_url,
        "listen-peer-urls": start.peer_url,
        "initial-advertise-peer-urls": start.peer_url,
        "initial-cluster": start.initial_cluster,
        "initial-cluster-state": start.state,
        "initial-cluster-token": start.token,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": str(start.quota_bytes),
        "log-outputs": str(start.log_dir / LOG_FILE),
        "enable-log-rotation": "true",
        "log-rotation-config-json": _rotation(),
        **start.flags,
    }
    return [f"--{flag}={value}" for flag, value in flags.items()]


def etcdctl_environment(start: EtcdStart) -> dict[str, str]:
    """What lets `etcdctl` without an option find the member, and show the host's certificate to it."""
    named = {"ETCDCTL_CACERT": "trusted-ca-file", "ETCDCTL_CERT": "cert-file", "ETCDCTL_KEY": "key-file"}
    shown = {name: start.flags[flag] for name, flag in named.items() if flag in start.flags}
    return {"ETCDCTL_ENDPOINTS": start.client_url, **shown}


def _rotation() -> str:
    bounds = {"maxsize": LOG_MEGABYTES, "maxage": 0, "maxbackups": LOG_BACKUPS, "compress": False}
    return json.dumps({**bounds, "localtime": False}, separators=(",", ":"))


def prepare_directories(start: EtcdStart) -> None:
    """Make the directories; the data directory is the owner's alone. Raises OSError."""
    start.log_dir.mkdir(parents=True, exist_ok=True)
    start.data_dir.mkdir(parents=True, exist_ok=True)
    start.data_dir.chmod(0o700)


def set_data_aside(data_dir: Path) -> None:
    """Make room for a clean start; one generation of old data stays as `member.previous`. Raises OSError.

    On a small disk it does not stay: the new member needs the room.
    """
    present, previous = data_dir / "member", data_dir / "member.previous"
    if not present.exists():
        return
    shutil.rmtree(previous, ignore_errors=True)
    present.rename(previous)
    if free_bytes(data_dir) < KEEP_BYTES:
        shutil.rmtree(previous)
        log.warning("etcd data removed", path=str(present), reason="the disk has no room to keep them")
    else:
        log.warning("etcd data set aside", path=str(previous))


def free_bytes(path: Path) -> int:
    """Bytes that the file system of `path` has left for us. Raises OSError."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
