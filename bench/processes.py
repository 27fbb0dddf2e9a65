"""Child processes of a measurement: started, waited for by what they print, ended, and their CPU time."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

READY_SECONDS = 60.0
END_SECONDS = 10.0


class ProcessError(Exception):
    """A process ended or did not say what was waited for; the text has the end of its log."""


class Child:
    """One process with its standard input and output as pipes and its errors in a file."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
            )
        self._said = b""  # and not told yet: a select sees nothing of what a buffered reader took already

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        """User and system time of all its threads until now, to the nanosecond.

        /proc counts hundredths of a second. The clock's number is that of clock_getcpuclockid(3).
        """
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def tell(self, line: str) -> None:
        """Write one line to its input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessError(self._ended()) from None

    def line(self, seconds: float) -> str:
        """The next line of its output. Raises ProcessError when it is not whole in time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise ProcessError(f"{self._log.name} said nothing for {seconds} s: {self._tail()}")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise ProcessError(self._ended())
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode(errors="replace")

    def wait_file(self, path: Path, text: str) -> None:
        """Until a file that it writes has `text`."""
        self._wait(lambda: path.exists() and text in path.read_text(errors="replace"), f"{text!r} in {path}")

    def wait_port(self, host: str, port: int) -> None:
        """Until it accepts connections."""

        def connects() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
                return True
            return False

        self._wait(connects, f"a listener at {host}:{port}")

    def _wait(self, probe: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not probe():
            if self._process.poll() is not None:
                raise ProcessError(self._ended())
            if time.monotonic() > deadline:
                raise ProcessError(f"{self._log.name}: no {what} in {READY_SECONDS} s: {self._tail()}")
            time.sleep(0.05)

    def end(self) -> None:
        """SIGTERM, then SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _ended(self) -> str:
        return f"{self._log.name} ended with code {self._process.poll()}: {self._tail()}"

    def _tail(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])


@contextlib.contextmanager
def child(command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A process that ends with the block."""
    started = Child(command, log, env)
    try:
        yield started
    finally:
        started.end()


def free_port(host: str) -> int:
    """A port that is free now."""
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
