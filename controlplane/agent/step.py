"""One step of a longer piece of work as a command, with its progress and last words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from controlplane.base.bounded_command import CommandError, bounded_process, last_lines

KEPT_LINES = 15
_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


class StepError(Exception):
    """A step that did not end well; the message holds the end of its output."""


async def run_step(
    command: Sequence[str | Path],
    *,
    seconds: float,
    progress: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    inherit: Sequence[int] = (),
) -> list[str]:
    """Run the command, calling `progress` with each line, and return its last lines. Raises StepError.

    When it takes longer than `seconds`, or this task is cancelled, its whole session is killed.
    """
    words = [str(word) for word in command]
    shown = _shown(words)
    step = step_environment() | dict(environment or {})
    try:
        async with bounded_process(
            words, seconds, merged=True, environment=step, inherit=inherit, shown=shown
        ) as process:
            lines = await last_lines(process, KEPT_LINES, progress)
            code = await process.wait()
    except CommandError as error:
        raise StepError(str(error)) from error
    if code != 0:
        raise StepError(f"{shown} ended with code {code}: " + " | ".join(lines))
    return lines


def step_environment() -> dict[str, str]:
    """What a step gets of this process' environment: where things are, and nothing that steers Python."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**kept, **pip, "PYTHONUNBUFFERED": "1", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _shown(words: Sequence[str]) -> str:
    """The command's program and verb, without arguments that may hold an index's credentials."""
    verb = next((word for word in words[1:] if not word.startswith("-")), "")
    return f"{Path(words[0]).name} {verb}".strip()
