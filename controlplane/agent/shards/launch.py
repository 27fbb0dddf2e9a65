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


async def launch_holder(directory: ShardDir) -> ProcessId | None:
    """Start the holder in a session of its own; None when it ended at once. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    errors = os.open(directory.path / HOLDER_ERRORS, flags, 0o600)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            HOLDER_MODULE,
            str(directory.path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, DIRECTORY_VARIABLE: str(directory.path)},
            start_new_session=True,
        )
    finally:
        os.close(errors)
    return identify(process.pid)


def find_holder(directory: ShardDir, state: HolderState | None) -> ProcessId | None:
    """The holder of the directory: as the record says, else by what its environment names."""
    if state is not None and identify(state.holder.pid) == state.holder:
        return state.holder
    return next(with_environment(f"{DIRECTORY_VARIABLE}={directory.path}"), None)


async def wait_gone(process: ProcessId) -> None:
    """Return when this very process has ended, whoever its parent is."""
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
        loop.remove_reader(descriptor)
        os.close(descriptor)


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
