"""One step of an installation as a process that can be cancelled, with its progress and last words."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

KEPT_LINES = 15
_LINE_LIMIT = 1 << 20
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


class StepError(Exception):
    """A step that did not end well; the message holds the end of its output."""


async def run_step(
    command: Sequence[str | Path],
    *,
    seconds: float,
    progress: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Run the command, calling `progress` with each line, and return its last lines. Raises StepError.

    When it takes longer than `seconds`, or this task is cancelled, its whole session is killed.
    """
    words = [str(word) for word in command]
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=step_environment() | dict(environment or {}),
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
    except OSError as error:
        raise StepError(f"{words[0]} can't be run: {error}") from error
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        async with asyncio.timeout(seconds):
            await _read(process, lines, progress)
            code = await process.wait()
    except TimeoutError:
        raise StepError(f"{_shown(words)} took over {seconds:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code != 0:
        raise StepError(f"{_shown(words)} ended with code {code}: " + " | ".join(lines))
    return list(lines)


def step_environment() -> dict[str, str]:
    """What a step gets of this process' environment: where things are, and nothing that steers Python."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**kept, **pip, "PYTHONUNBUFFERED": "1", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


async def _read(
    process: asyncio.subprocess.Process, lines: deque[str], progress: Callable[[str], None]
) -> None:
    assert process.stdout is not None
    while True:
        try:
            data = await process.stdout.readline()
        except ValueError:  # a line over the limit is dropped
            continue
        if not data:
            return
        line = data.decode("utf-8", "replace").strip()
        if line:
            lines.append(line)
            progress(line)


def _shown(words: Sequence[str]) -> str:
    """The command's program and verb, without arguments that may hold an index's credentials."""
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    return f"{Path(words[0]).name} {verb}".strip()
