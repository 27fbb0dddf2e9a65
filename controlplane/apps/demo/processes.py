"""The demo's processes: each in a group of its own, with its log in a file, ended by its own pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from controlplane.apps.demo.errors import DemoError
from controlplane.cluster import child_guard

_TAIL_LINES = 15
_STOP_SECONDS = 8.0


def find_program(name: str) -> str:
    """Path of a native program: beside the interpreter, else on PATH. Raises DemoError."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise DemoError(f"{name} is neither in {beside} nor on PATH: install it, or run `make setup`")
    return found


def python_module(module: str, *arguments: str) -> list[str]:
    """Command line of one of our Python programs, run by this interpreter."""
    return [sys.executable, "-m", module, *arguments]


class Child:
    """A running program. `stop` ends it and everything that it started; it also ends with this process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        read_output: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [*_guard(), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if read_output else sink,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """Its standard output, where it is read."""
        assert self._process.stdout is not None, f"{self.name} was started without read_output"
        return self._process.stdout

    @property
    def running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise DemoError with the end of its log where it has ended."""
        if not self.running:
            raise DemoError(f"{self.name} ended with code {self.exit_code}; its log ends:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log_text().splitlines()
        return "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:]) or "    (empty)"

    def log_text(self) -> str:
        """What it logged so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def interrupt(self) -> None:
        """SIGTERM: it ends in its own time."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the program alone, and wait for its end."""
        self._process.kill()
        self._process.wait(_STOP_SECONDS)

    def wait(self, seconds: float) -> int:
        """Its exit code; DemoError where it still runs after `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} still runs {seconds:.0f} s after it was told to end") from None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, and SIGKILL to what is left of its group."""
        if self.running:
            self._signal_group(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self._signal_group(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _signal_group(self, number: signal.Signals) -> None:
        # The group's number stays taken while a member lives or its leader is not waited for; only then does
        # it
        # vanish, and the call fails.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _guard() -> list[str]:
    """What a program is started by so that it does not outlive us, even where we are killed."""
    return [sys.executable, "-I", "-S", str(child_guard.__file__), str(os.getpid())]


def run_to_end(command: Sequence[str], seconds: float, what: str) -> str:
    """Standard output of a short program; DemoError with its last words where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise DemoError(f"{what} did not end within {seconds:.0f} s") from None
    if done.returncode != 0:
        raise DemoError(
            f"{what} failed with code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def descendants(pid: int, name: str) -> list[int]:
    """Processes below `pid` whose program is called `name`."""
    found, waiting = [], [pid]
    while waiting:
        children = _children(waiting.pop())
        waiting += children
        found += [child for child in children if _program(child) == name]
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def suspend(pids: Sequence[int], seconds: float = 5.0) -> None:
    """SIGSTOP, and wait until every thread stands still; DemoError where one does not."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + seconds
    while not all(_stands_still(pid) for pid in pids):
        if time.monotonic() > end:
            raise DemoError(f"processes {list(pids)} do not stand still {seconds:.0f} s after SIGSTOP")
        time.sleep(0.01)


def resume(pids: Sequence[int]) -> None:
    """SIGCONT to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _stands_still(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(") ")[2].startswith("T") for task in tasks)
