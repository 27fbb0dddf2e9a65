"""Runs another program: with a deadline, bounded output, and no process left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

# For the end of a killed command's pipes.
REAP_SECONDS = 2.0
# Of a longer line only a part is read, and of each line so many characters are told.
MAX_LINE = 1 << 20
TOLD_CHARACTERS = 2000
_BLOCK = 65536


class CommandError(Exception):
    """The program can't be run, takes too long or prints too much. The text names it and says why."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How the program ended."""

    code: int
    output: bytes
    errors: bytes


@asynccontextmanager
async def bounded_process(
    command: Sequence[str],
    seconds: float,
    *,
    merged: bool = False,
    environment: Mapping[str, str] | None = None,
    inherit: Sequence[int] = (),
    shown: str = "",
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a command in a session of its own; at the end of the block the whole session is killed.

    The block has `seconds` in all. Its output and errors are pipes, with `merged` one. Without `environment`
    it gets ours. It has the descriptors `inherit` too. `shown` names it in errors where its first word does
    not. Raises CommandError.
    """
    name = shown or command[0]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if merged else asyncio.subprocess.PIPE,
            env=environment,
            pass_fds=inherit,
            start_new_session=True,
            limit=MAX_LINE,
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"{name} can't be run: {error}") from error
    try:
        async with asyncio.timeout(seconds):
            yield process
    except TimeoutError:
        raise CommandError(f"{name} gave no answer within {seconds:g} s") from None
    finally:
        await _end(process)


async def run_bounded(command: Sequence[str], seconds: float, max_bytes: int) -> Finished:
    """Run a command to its end within `seconds`; at most `max_bytes` of each output. Raises CommandError."""
    async with bounded_process(command, seconds) as process:
        try:
            return await _communicate(process, max_bytes)
        except _TooMuchError:
            raise CommandError(f"{command[0]} printed more than {max_bytes} bytes") from None


async def last_output(process: asyncio.subprocess.Process, max_bytes: int) -> bytes:
    """Read a process' output to its end; the last `max_bytes` of it."""
    assert process.stdout is not None
    output = bytearray()
    while data := await process.stdout.read(_BLOCK):
        output += data
        del output[:-max_bytes]
    return bytes(output)


async def last_lines(
    process: asyncio.subprocess.Process, count: int, progress: Callable[[str], None]
) -> list[str]:
    """Read a process' output to its end, calling `progress` with each line; the last `count` of them."""
    assert process.stdout is not None
    lines: deque[str] = deque(maxlen=count)
    while True:
        try:
            data = await process.stdout.readline()
        except ValueError:  # over the limit
            continue
        if not data:
            return list(lines)
        line = data.decode("utf-8", "replace").strip()[:TOLD_CHARACTERS]
        if line:
            lines.append(line)
            progress(line)


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
    while chunk := await stream.read(_BLOCK):
        output += chunk
        if len(output) > max_bytes:
            raise _TooMuchError
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command's whole session, since a shell script's children may hold the pipe, and reap it.

    asyncio reaps a child only when its pipes are at their end, so what is left in them is read away.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(REAP_SECONDS):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(_BLOCK):
                    pass
            await process.wait()
    except TimeoutError:
        pass  # a process that left the session holds the pipe, and its end is not ours to wait for
    finally:
        # Also when a second cancellation ends the wait: without this the pipes of what did not end yet would
        # stay open until the collector finds them, perhaps when the loop is gone.
        process._transport.close()  # type: ignore[attr-defined]
