"""The folders that hold weights, and what in them counts as one set of weights."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.discovery.disks import is_network, mount_of, mount_points
from controlplane.agent.discovery.sysfs import entries
from controlplane.base.logging import get_logger

# Names that begin so are the agent's: half-fetched files and what is being removed.
PRIVATE_PREFIX = ".akv-"
# Hugging Face's cache keeps its models one level deeper.
_CONTAINERS = {"hub"}
MAX_FILES = 1_000_000
# All of them go in one message.
MAX_SETS = 4096

log = get_logger("weights")


@dataclass(frozen=True, slots=True)
class WeightRoot:
    """A folder of weights: resolved, and as the operator wrote it. Nothing is removed from a shared one."""

    path: Path
    given: Path
    shared: bool


def resolve_roots(given: Iterable[tuple[Path, bool]], proc_root: Path) -> list[WeightRoot]:
    """The roots that exist; one on a network file system is shared, whatever its setting says."""
    mounts = mount_points(proc_root)
    found = []
    for path, shared in given:
        resolved = path.resolve()
        if resolved.is_dir():
            network = is_network(mount_of(resolved, mounts)[1])
            found.append(WeightRoot(resolved, path, shared or network))
    return found


def read_weights(roots: Iterable[WeightRoot]) -> list[agent_pb2.Weights]:
    """The sets of weights below the roots, with their sizes on disk; at most MAX_SETS of them."""
    found = [(root, path) for root in roots for path in units(root.path)]
    if len(found) > MAX_SETS:
        log.warning("Too many weights to tell", there=len(found), told=MAX_SETS, first=shown(found[0][1]))
    return [
        agent_pb2.Weights(path=shown(path), size_bytes=size_of(path), shared=root.shared)
        for root, path in found[:MAX_SETS]
    ]


def shown(path: Path) -> str:
    """A path as text for messages, whose bytes that are no UTF-8 are written as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def units(root: Path) -> Iterator[Path]:
    """The folders and files directly below a root, and below a `hub` in it; no links, nothing hidden."""
    for path in entries(root):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.name in _CONTAINERS and path.is_dir():
            yield from (inner for inner in entries(path) if _is_unit(inner))
        elif _is_unit(path):
            yield path


def _is_unit(path: Path) -> bool:
    return not path.name.startswith(".") and not path.is_symlink() and (path.is_dir() or path.is_file())


def size_of(path: Path) -> int:
    """Bytes on disk of a file or a whole folder; links are not followed and a file counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for status in _walk(path):
        identity = (status.st_dev, status.st_ino)
        if identity not in seen and len(seen) < MAX_FILES:
            seen.add(identity)
            total += status.st_blocks * 512
    return total


def _walk(path: Path) -> Iterator[os.stat_result]:
    try:
        status = path.lstat()
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        yield status
    elif stat.S_ISDIR(status.st_mode):
        for folder, folders, files in os.walk(path, followlinks=False):
            folders.sort()
            for name in files:
                yield from _walk(Path(folder, name))
