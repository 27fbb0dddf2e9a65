"""Start programs, wait for what they log or listen on, and end them by pid; nothing outlives its test."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
KEPT_LINES = 20_000
# How long what must happen may take. A busy machine is slow, and only a test that fails waits so long.
PATIENCE = 30.0
# Open while a dataplane or card is busy (docs/decisions/0020-short-wakeups.md).
LATENCY_DEVICE = "/dev/cpu_dma_latency"
# When a log line came, Unix seconds by the test's clock: the clock of the program may be wrong.
ARRIVED = "arrived"

T = TypeVar("T")


def wait_until(probe: Callable[[], T | None], what: str, seconds: float = PATIENCE, every: float = 0.02) -> T:
    """Call `probe` until it gives something true, and return that; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(every)


def suspend(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands still: after the signal alone one may finish its turn."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _stands_still(pid), f"process {pid} stands still")


def _stands_still(pid: int) -> bool:
    try:
        threads = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that just ended; of a process, it is all
        return not Path(f"/proc/{pid}").exists()
    return all(thread.rpartition(") ")[2][0] in "TZX" for thread in threads)


def descriptors(pid: int) -> list[str]:
    """What the process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return found


def lasting_descriptors(pid: int) -> int:
    """How many it has open, without the one that comes and goes with its load."""
    return sum(name != LATENCY_DEVICE for name in descriptors(pid))


def python_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of our programs run from the source tree."""
    paths = [str(ROOT), str(ROOT / "build" / "gen"), os.environ.get("PYTHONPATH", "")]
    # No program of a test calls a public server: none needs the machine's hundred CAs, whose reading is a
    # tenth of a start. And an etcd has two cores to share with many others.
    lean = {"SSL_CERT_FILE": os.devnull, "GOMAXPROCS": "1"}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**os.environ, **path, **lean, **(extra or {})}


def python_module(module: str, *arguments: str) -> list[str]:
    """Command line of one of our Python programs."""
    return [sys.executable, "-m", module, *arguments]


class Program:
    """A child process whose stderr (and stdout) lines are kept. A context manager that always ends it."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        self.command = [str(part) for part in command]
        self.name = name or Path(self.command[0]).name
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        # Those lines that are events, read once: tests that wait look at all of them again and again.
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_LINES)
        self._changed = threading.Condition(threading.RLock())
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else python_environment(),
            text=True,
            errors="replace",
        )
        _live.add(self)
        self._reader = threading.Thread(target=self._read, name=f"log-{self.name}", daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or None while it runs; negative after a signal."""
        return self._process.poll()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Log lines that are JSON objects, all or those of one event name."""
        with self._changed:
            return [event for event in self._events if name is None or event.get("event") == name]

    def wait_event(
        self, name: str, seconds: float = PATIENCE, where: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """The first event of that name that satisfies `where`; AssertionError with the log otherwise."""
        return self._wait(
            lambda: next((event for event in self.events(name) if where(event)), None),
            f"event {name!r}",
            seconds,
        )

    def wait_line(self, text: str, seconds: float = PATIENCE) -> str:
        """The first line that contains `text`."""
        return self._wait(
            lambda: next((x for x in list(self.lines) if text in x), None), f"line {text!r}", seconds
        )

    def wait_port(self, host: str, port: int, seconds: float = PATIENCE) -> None:
        """Until something listens on host:port."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check_alive(f"listen on {host}:{port}")
            with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.5):
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.name} does not listen on {host}:{port} after {seconds} s\n{self.tail()}")

    def wait_exit(self, seconds: float = PATIENCE) -> int:
        """The exit code; AssertionError when it still runs after `seconds`."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds} s\n{self.tail()}") from None
        self._close()
        return code

    def suspend(self) -> None:
        """The process keeps its sockets and answers nothing from now on."""
        suspend(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._close()

    def stop(self, seconds: float = PATIENCE) -> int | None:
        """SIGTERM (after a SIGCONT), SIGKILL when it is not gone in time. Returns the exit code."""
        if self.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(PATIENCE)
        self._close()
        return self.returncode

    def tail(self, count: int = 30) -> str:
        """The end of the log, for messages."""
        with self._changed:
            return "\n".join(list(self.lines)[-count:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = _json_event(line)
            if event is not None:
                event[ARRIVED] = time.time()
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                if event is not None:
                    self._events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _wait(self, probe: Callable[[], T | None], what: str, seconds: float) -> T:
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                found = probe()
                if found is not None:
                    return found
                if not self._reader.is_alive() or time.monotonic() > end:
                    break
                self._changed.wait(min(0.2, max(0.0, end - time.monotonic())))
        state = f"exited with {self.returncode}" if self.returncode is not None else "runs"
        raise AssertionError(f"{self.name} ({state}): no {what} within {seconds} s\n{self.tail()}")

    def _check_alive(self, what: str) -> None:
        if self.returncode is not None:
            raise AssertionError(f"{self.name} exited with {self.returncode} before: {what}\n{self.tail()}")

    def _close(self) -> None:
        self._reader.join(5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        _live.discard(self)


_live: weakref.WeakSet[Program] = weakref.WeakSet()


@atexit.register
def _end_leftovers() -> None:
    for program in list(_live):
        program.kill()


def _json_event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
