"""Starting holders, finding them again, and waiting for their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from controlplane.agent.shards.process import ProcessId, identify, send_signal, with_environment
from controlplane.agent.shards.record import (
    DIRECTORY_VARIABLE,
    HOLDER_ERRORS,
    TOKEN_VARIABLE,
    HolderState,
    ShardDir,
)

HOLDER_MODULE = "controlplane.agent.shards.holder"


def launch_holder(directory: ShardDir) -> ProcessId | None:
    """Start the holder in a session of its own; None when it ended at once. Raises OSError.

    Not by subprocess or asyncio: their objects end or miss a child that outlives them.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    errors = str(directory.path / HOLDER_ERRORS)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", HOLDER_MODULE, str(directory.path)],
        {**os.environ, DIRECTORY_VARIABLE: str(directory.path)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, errors, flags, 0o600),
        ],
        setsid=True,
    )
    found = identify(pid)
    if found is None:
        _collect(pid)
    return found


def find_holder(directory: ShardDir, state: HolderState | None) -> ProcessId | None:
    """The holder of the directory: as the record says, else by what its environment names."""
    if state is not None and identify(state.holder.pid) == state.holder:
        return state.holder
    return next(with_environment(f"{DIRECTORY_VARIABLE}={directory.path}"), None)


async def wait_gone(process: ProcessId) -> None:
    """Return when this very process has ended, whoever its parent is; a child of ours is collected."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    try:
        if identify(process.pid) != process:
            return
        loop.add_reader(descriptor, _settle, gone)
        await gone
    finally:
        _collect(process.pid)
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _collect(pid: int) -> None:
    """Take the exit status of a child of ours that has ended; a zombie would stay as long as the agent."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _settle(gone: asyncio.Future[None]) -> None:
    if not gone.done():
        gone.set_result(None)


def kill_by_token(token: str) -> int:
    """SIGKILL to whatever still runs of a start of a shard; how many there were."""
    found = list(with_environment(f"{TOKEN_VARIABLE}={token}"))
    for process in found:
        with suppress(PermissionError):
            send_signal(process, signal.SIGKILL)
    return len(found)
