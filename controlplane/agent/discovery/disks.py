"""File systems: how full they are, and whether other nodes see them too."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.discovery.sysfs import read_text

_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"),
    *("orangefs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs", "fuse.ceph-fuse", "fuse.gcsfuse"),
    *("fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.sshfs"),
}


def mount_points(proc_root: Path) -> dict[Path, str]:
    """Mount point to file system type; of several at one place, the last is the one that is seen."""
    found = {}
    for line in read_text(proc_root / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) > 4 and kind:
            found[Path(_unescape(fields[4]))] = kind
    return found


def mount_of(path: Path, mounts: dict[Path, str]) -> tuple[Path, str]:
    """The mount that a resolved path is on, and its type."""
    for parent in (path, *path.parents):
        if parent in mounts:
            return parent, mounts[parent]
    return Path("/"), ""


def is_network(kind: str) -> bool:
    """Whether a file system of that type is one that other nodes may use at the same time."""
    return kind in _NETWORK


def read_storage(paths: Iterable[Path], proc_root: Path) -> list[agent_pb2.Storage]:
    """One entry for each file system of `paths`; one that is not there yet counts as its parent."""
    mounts = mount_points(proc_root)
    found: dict[Path, agent_pb2.Storage] = {}
    for path in paths:
        mount, kind = mount_of(_existing(path), mounts)
        if mount in found:
            continue
        try:
            figures = os.statvfs(mount)
        except OSError:
            continue
        found[mount] = agent_pb2.Storage(
            path=str(mount),
            free_bytes=figures.f_bavail * figures.f_frsize,
            total_bytes=figures.f_blocks * figures.f_frsize,
            shared=is_network(kind),
        )
    return [found[mount] for mount in sorted(found)]


def _existing(path: Path) -> Path:
    resolved = path.resolve()
    while not resolved.exists() and resolved != resolved.parent:
        resolved = resolved.parent
    return resolved


def _unescape(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash in octal."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text
