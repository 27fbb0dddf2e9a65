"""Commands with a deadline: nothing of them stays, whatever they leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from controlplane.base import bounded_command
from controlplane.base.bounded_command import (
    TOLD_CHARACTERS,
    CommandError,
    bounded_process,
    last_lines,
    last_output,
    run_bounded,
)
from tests.support.waiting import eventually


async def test_a_child_in_another_session_that_holds_the_pipe_keeps_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_command, "REAP_SECONDS", 0.1)
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & wait"
    before = psutil.Process().num_fds()
    with pytest.raises(CommandError, match=r"sh gave no answer within 1 s"):
        await run_bounded(["/bin/sh", "-c", script], 1, 1000)
    try:
        await eventually(lambda: psutil.Process().num_fds() <= before, "its pipes are closed")
    finally:
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_who_is_cancelled_twice_leaves_no_pipe_open(tmp_path: Path) -> None:
    """The second time while it waits for the end of what it has killed."""
    started: list[asyncio.subprocess.Process] = []
    script = f"setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' & wait"

    async def run() -> None:
        async with bounded_process(["/bin/sh", "-c", script], 60) as process:
            started.append(process)
            await process.wait()

    command = asyncio.create_task(run())
    left = tmp_path / "pid"
    await eventually(lambda: left.exists() and left.read_text().strip() != "" and started != [], "it runs")
    try:
        command.cancel()
        await asyncio.sleep(0)
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)
        assert started[0]._transport.is_closing()  # type: ignore[attr-defined]
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


async def test_lines_are_told_and_the_last_are_kept() -> None:
    told: list[str] = []
    script = "echo one; head -c 1200000 /dev/zero | tr '\\0' x; echo; echo; echo two >&2; echo three"
    async with bounded_process(["/bin/sh", "-c", script], 30, merged=True) as process:
        assert await last_lines(process, 2, told.append) == ["two", "three"]
        assert await process.wait() == 0
    assert [told[0], *told[-2:]] == ["one", "two", "three"]
    assert max(map(len, told)) <= TOLD_CHARACTERS


async def test_of_much_output_the_end_is_kept() -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' x; printf end"
    async with bounded_process(["/bin/sh", "-c", script], 30, merged=True) as process:
        assert await last_output(process, 10) == b"xxxxxxxend"


async def test_a_program_that_is_not_there_is_named_as_it_is_to_be_shown() -> None:
    with pytest.raises(CommandError, match=r"^pip install can't be run: "):
        async with bounded_process(["/nowhere/x"], 1, shown="pip install"):
            raise AssertionError("it does not begin")
