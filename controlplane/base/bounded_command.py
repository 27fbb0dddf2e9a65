"""Runs another program once: with a deadline, bounded output, and no process left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

# For the end of a killed command's pipes.
REAP_SECONDS = 2.0


class CommandError(Exception):
    """The program can't be run, takes too long or prints too much. The text names it and says why."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How the program ended."""

    code: int
    output: bytes
    errors: bytes


async def run_bounded(command: Sequence[str], seconds: float, max_bytes: int) -> Finished:
    """Run a command to its end within `seconds`; at most `max_bytes` of each output. Raises CommandError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"{command[0]} can't be run: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            return await _communicate(process, max_bytes)
    except TimeoutError:
        raise CommandError(f"{command[0]} gave no answer within {seconds:g} s") from None
    except _TooMuchError:
        raise CommandError(f"{command[0]} printed more than {max_bytes} bytes") from None
    finally:
        await _end(process)


async def _communicate(process: asyncio.subprocess.Process, max_bytes: int) -> Finished:
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.TaskGroup() as group:
            output = group.create_task(_read(process.stdout, max_bytes))
            errors = group.create_task(_read(process.stderr, max_bytes))
    except ExceptionGroup as failures:  # of either reader; what one raises stands for both
        raise failures.exceptions[0] from None
    return Finished(await process.wait(), output.result(), errors.result())


class _TooMuchError(Exception):
    pass


async def _read(stream: asyncio.StreamReader, max_bytes: int) -> bytes:
    output = bytearray()
    while chunk := await stream.read(65536):
        output += chunk
        if len(output) > max_bytes:
            raise _TooMuchError
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command's whole session, since a shell script's children may hold the pipe, and reap it.

    asyncio reaps a child only when its pipes are at their end, so what is left in them is read away.
    """
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    try:
        async with asyncio.timeout(REAP_SECONDS):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(65536):
                    pass
            await process.wait()
    except TimeoutError:
        return  # a process that left the session holds the pipe: its end is not ours to wait for
