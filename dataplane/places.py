"""Directories, sockets and the identity of this host: what the dataplane claims on the machine."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

HOST_UUID_FILE = "host_uuid"
_PROBE_SECONDS = 1.0


# Two for each of 1,024 sessions (socket, shared memory), and some for cards, logs and the control socket.
WANTED_DESCRIPTORS = 4096


class PlaceError(Exception):
    """Something on this machine can't be claimed; the text is one line with the remedy."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors as far as wanted and allowed; the limit then.

    Below it idle clients could take the descriptors with which a card is reached again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def claim_socket(key: str, path: Path) -> None:
    """Make room for a Unix socket: the file of a process that has ended goes away.

    Raises PlaceError when a process still answers there, or when the file is something else.
    """
    _make_directory(key, path.parent)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise PlaceError(f"{key}: {str(path)!r} is there and is no socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            raise PlaceError(f"{key}: {str(path)!r} can't be looked at: {error.strerror or error}") from error
    raise PlaceError(
        f"{key}: {str(path)!r} is in use by another dataplane; stop that one, or choose another path"
    )


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files and sockets made inside are for their owner alone. For the main thread, at the start."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def host_uuid(state_dir: Path) -> str:
    """This host's NVMe host identifier: made once, kept in `state_dir`. Raises PlaceError."""
    _make_directory("state_dir", state_dir)
    file = state_dir / HOST_UUID_FILE
    if not file.exists():
        _write_host_uuid(file)
    return _read_host_uuid(file)


def _write_host_uuid(file: Path) -> None:
    """Whole or not at all, whenever the process is killed; another that was faster wins."""
    draft = file.with_name(f"{HOST_UUID_FILE}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as writer:
            writer.write(f"{uuid.uuid4()}\n")
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(draft)
        draft.unlink()
    except OSError as error:
        raise PlaceError(f"state_dir: {str(file.parent)!r} can't be written: {error.strerror}") from error


def _read_host_uuid(file: Path) -> str:
    try:
        return str(uuid.UUID(file.read_text(encoding="ascii").strip()))
    except (OSError, ValueError) as error:
        raise PlaceError(f"state_dir: {str(file)!r} holds no UUID: {error}; remove the file") from error


def _make_directory(key: str, directory: Path) -> None:
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(f"{key}: {str(directory)!r} can't be made: {error.strerror}") from error
