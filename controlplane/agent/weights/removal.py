"""Removing weights without harm, whatever a path says and whoever changes the folders meanwhile.

The way from a root to what is removed is opened folder by folder, without following links and without
leaving the root's file system; the last step renames within the open parent, and only what then has the
identity that was checked is deleted. So a link that is put in the way at any moment leads nowhere.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from controlplane.agent.discovery.disks import mount_points
from controlplane.agent.weights.roots import PRIVATE_PREFIX, WeightRoot, shown, size_of
from controlplane.base.logging import get_logger

TRASH_PREFIX = f"{PRIVATE_PREFIX}trash-"
# Of this process, which deletes it itself.
_OWN_TRASH = f"{TRASH_PREFIX}{secrets.token_hex(8)}-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

log = get_logger("weights")


class KeptError(Exception):
    """Why a path is kept; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path lies: its root and the names from there, at least one."""

    root: WeightRoot
    names: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The whole resolved path."""
        return self.root.path.joinpath(*self.names)


def place_of(text: str, roots: Iterable[WeightRoot]) -> Place:
    """The place that a path names, by its words alone. Raises KeptError."""
    if not text.startswith("/") or "\0" in text:
        raise KeptError("it is not an absolute path")
    names = tuple(name for name in text.split("/") if name)
    if any(name in {".", ".."} for name in names):
        raise KeptError("it has . or .. in it; name the path itself")
    path = Path("/", *names)
    matches = [
        Place(root, path.relative_to(base).parts)
        for root in roots
        for base in {root.path, root.given}
        if path.is_relative_to(base)
    ]
    if not matches:
        raise KeptError("it lies below none of this node's weight folders")
    place = min(matches, key=lambda found: len(found.names))
    if not place.names:
        raise KeptError("it is a weight folder itself")
    if any(match.root.shared for match in matches):
        raise KeptError("it lies in a folder that others use too")
    if any(name.startswith(PRIVATE_PREFIX) for name in place.names):
        raise KeptError("it is the agent's own")
    if any(root.path.is_relative_to(place.path) for root in roots):
        raise KeptError("another weight folder lies below it")
    return place


def remove_weights(text: str, roots: list[WeightRoot], in_use: Iterable[str], proc_root: Path) -> int:
    """Remove what the path names and return the bytes freed. Raises KeptError, and then nothing changed.

    `in_use`: paths that shards were started with.
    """
    place = place_of(text, roots)
    try:
        _refuse_use(place, in_use)
        with _parent_of(place) as parent:
            status = os.stat(place.names[-1], dir_fd=parent, follow_symlinks=False)
            _refuse_kind(status, os.fstat(parent))
            _refuse_mounts(place, proc_root)
            _refuse_links(place, roots)
            size = size_of(place.path)
            _take_away(place.names[-1], parent, status)
    except FileNotFoundError:
        raise KeptError("it is not there") from None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise KeptError("a part of it is a link, or not a folder; name the path itself") from error
        raise KeptError(f"it can't be removed: {error.strerror}") from error
    log.info("Weights removed", path=str(place.path), bytes=size)
    return size


def empty_trash(roots: Iterable[WeightRoot]) -> None:
    """Delete what an interrupted removal had already taken away."""
    for root in roots:
        if root.shared:
            continue
        for folder, folders, files in os.walk(root.path, followlinks=False):
            for name in [name for name in (*folders, *files) if _is_old_trash(name)]:
                with suppress(OSError):
                    descriptor = os.open(folder, _FOLDER)
                    try:
                        _delete(name, descriptor)
                    finally:
                        os.close(descriptor)
            folders[:] = [name for name in folders if not name.startswith(TRASH_PREFIX)]


def _is_old_trash(name: str) -> bool:
    return name.startswith(TRASH_PREFIX) and not name.startswith(_OWN_TRASH)


@contextmanager
def _parent_of(place: Place) -> Iterator[int]:
    """The open folder that holds the last name. Raises OSError (ELOOP, ENOTDIR: a link is in the way)."""
    descriptor = os.open(place.root.path, _FOLDER)
    try:
        device = os.fstat(descriptor).st_dev
        for name in place.names[:-1]:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            if os.fstat(descriptor).st_dev != device:
                raise KeptError("another file system is mounted on the way to it")
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_kind(status: os.stat_result, parent: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise KeptError("it is a link; name the path itself")
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise KeptError("it is neither a file nor a folder")
    if status.st_dev != parent.st_dev:
        raise KeptError("another file system is mounted there")


def _refuse_use(place: Place, in_use: Iterable[str]) -> None:
    """Whether a shard was started with it, with something in it, or with a folder of the root around it."""
    for used in in_use:
        path = Path(used).resolve()
        around = place.path.is_relative_to(path) and path.is_relative_to(place.root.path)
        if path.is_relative_to(place.path) or around:
            raise KeptError(f"a shard uses {shown(path)}")


def _refuse_mounts(place: Place, proc_root: Path) -> None:
    """Mounts in it, and on the way to it: a folder that was bound there may be of the same file system."""
    for mount in mount_points(proc_root):
        if mount.is_relative_to(place.path) or (
            place.path.is_relative_to(mount)
            and mount != place.root.path
            and mount.is_relative_to(place.root.path)
        ):
            raise KeptError(f"another file system is mounted at {mount}")


def _refuse_links(place: Place, roots: Iterable[WeightRoot]) -> None:
    """Whether a link elsewhere below the roots leads into it: then it is part of other weights too."""
    for root in roots:
        for folder, folders, files in os.walk(root.path, followlinks=False):
            here = Path(folder)
            if here == place.path:
                folders.clear()
                continue
            for name in (*folders, *files):
                link = here / name
                if link.is_symlink() and link != place.path and link.resolve().is_relative_to(place.path):
                    raise KeptError(f"the link {shown(link)} leads to it")


def _take_away(name: str, parent: int, expected: os.stat_result) -> None:
    """Rename it to a name of our own, check that it is what was looked at, and delete it."""
    trash = f"{_OWN_TRASH}{secrets.token_hex(8)}"
    os.rename(name, trash, src_dir_fd=parent, dst_dir_fd=parent)
    found = os.stat(trash, dir_fd=parent, follow_symlinks=False)
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        os.rename(trash, name, src_dir_fd=parent, dst_dir_fd=parent)
        raise KeptError("it was replaced by something else meanwhile")
    _delete(trash, parent)


def _delete(name: str, parent: int) -> None:
    """Delete a file or a folder of the open parent; a link in it is removed and not followed."""
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)
