"""The holder: a small process of its own session that owns one engine process and outlives the agent.

It starts the engine, keeps its output in rotating files, ends it on SIGTERM (grace, then SIGKILL to all that
it started), and writes how it ended. Everything it needs is imported at its start, so that an upgrade of the
agent's files under it does no harm. Run as `python -m controlplane.agent.shards.holder DIRECTORY`.

Exit codes: 0 the engine's end is in the record, 3 another holder has the directory, 4 the record is unusable.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import psutil

from controlplane.agent.shards.output import RotatingLog, drain_pipe
from controlplane.agent.shards.process import ProcessId, identify
from controlplane.agent.shards.record import (
    TOKEN_VARIABLE,
    Exit,
    HolderPhase,
    HolderState,
    RecordError,
    ShardDir,
)
from controlplane.agent.shards.spec import ShardSpec

LOCK_SECONDS = 5.0
RECORD_SECONDS = 60.0
CLOSE_SECONDS = 5.0
# Of output, before signals are obeyed again.
BLOCKS_AT_ONCE = 16
_TAKEN, _UNUSABLE = 3, 4
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class Holder:
    """One engine's life. `run` returns when its end is on record."""

    def __init__(self, directory: ShardDir, spec: ShardSpec, token: str) -> None:
        itself = identify(os.getpid())
        assert itself is not None
        self._directory = directory
        self._spec = spec
        self._state = HolderState(token, "starting", itself, started=time.time())
        self._log = RotatingLog(directory.log, spec.log_bytes, spec.log_files)
        self._engine: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._kill_at: float | None = None

    def run(self, wake: int) -> None:
        """Start the engine and hold it to its end; signals arrive at `wake`."""
        self._write("starting")
        try:
            self._engine = self._start()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._end(None, f"{self._spec.argv[0]} can't be started: {error}")
            return
        self._write("running", identify(self._engine.pid))
        status = self._attend(wake)
        self._end(status, "")

    def _start(self) -> subprocess.Popen[bytes]:
        spec = self._spec
        environment = {**spec.env, TOKEN_VARIABLE: self._state.token}
        return subprocess.Popen(
            spec.argv,
            env=environment,
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_prepare_child, spec.cgroup),  # noqa: PLW1509 - there is one thread
        )

    def _attend(self, wake: int) -> int:
        """Copy output and obey signals until the engine and all its children are gone; its wait status."""
        assert self._engine is not None
        assert self._engine.stdout is not None
        output = self._engine.stdout.fileno()
        os.set_blocking(output, False)
        status: int | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while status is None:
                ready = {key.fd for key, _ in selector.select(self._timeout())}
                if output in ready and not self._copy(output):
                    selector.unregister(output)
                if wake in ready:
                    self._obey(wake)
                self._kill_when_due()
                status = _reap(self._engine.pid)
            self._end_children()
            self._copy_rest(selector, output)
        return status

    def _copy(self, output: int) -> bool:
        """Keep what the pipe holds, but not for ever, from an engine that writes faster; False at its end."""
        for data in islice(drain_pipe(output), BLOCKS_AT_ONCE):
            if not data:
                return False
            self._log.write(data)
        return True

    def _copy_rest(self, selector: selectors.BaseSelector, output: int) -> None:
        """What the engine wrote last; a stranger that inherited the pipe can't hold this up."""
        end = time.monotonic() + CLOSE_SECONDS
        while output in selector.get_map() and time.monotonic() < end:
            if not self._copy(output):
                return
            selector.select(0.1)

    def _obey(self, wake: int) -> None:
        numbers = os.read(wake, 4096)
        if signal.SIGTERM in numbers and not self._asked:
            self._asked = True
            self._kill_at = time.monotonic() + self._spec.stop_seconds
            self._write("stopping", self._state.engine)
            self._signal_group(signal.SIGTERM)

    def _timeout(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _kill_when_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = time.monotonic() + 1.0
            self._signal_group(signal.SIGKILL)
            _kill_descendants()

    def _signal_group(self, number: signal.Signals) -> None:
        """To the engine's group: it is not reaped yet, so its id is still its own."""
        assert self._engine is not None
        with suppress(ProcessLookupError):
            os.killpg(self._engine.pid, number)

    def _end_children(self) -> None:
        """What the engine left behind, in whatever session, is this process's to end: it adopts orphans."""
        end = time.monotonic() + CLOSE_SECONDS
        while _kill_descendants() and time.monotonic() < end:
            time.sleep(0.01)
            _reap(-1)

    def _end(self, status: int | None, error: str) -> None:
        code = os.waitstatus_to_exitcode(status) if status is not None else None
        by_signal = code is not None and code < 0
        ended = Exit(
            code=None if by_signal else code,
            signal=_signal_name(-code) if code is not None and by_signal else "",
            error=error,
            last_output=self._log.last_output(),
            asked=self._asked,
            at=time.time(),
        )
        self._log.close()
        self._write("ended", self._state.engine, ended)

    def _write(self, phase: HolderPhase, engine: ProcessId | None = None, ended: Exit | None = None) -> None:
        """Write the record; a full disk does not end an engine, and its end is on record all the same."""
        old = self._state
        self._state = HolderState(old.token, phase, old.holder, engine, old.started, ended)
        give_up = time.monotonic() + (RECORD_SECONDS if ended is not None else 0.0)
        while not self._written():
            if time.monotonic() >= give_up:
                return
            time.sleep(1.0)

    def _written(self) -> bool:
        try:
            self._directory.write_state(self._state)
        except OSError as error:
            _complain(f"record not written: {error}")
        else:
            return True
        if self._state.exit is None:
            return False
        # Fails too where each write needs new space, as on file systems that copy on write.
        with suppress(OSError):
            self._directory.write_end(self._state)
            return True
        return False


def _complain(text: str) -> None:
    """Say it in holder.err, which lies on the same disk as the records: a full one must not end an engine."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


def _prepare_child(cgroup: str) -> None:
    """In the child: join the limits, and end with the holder, without which output would block the engine."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if cgroup:
        descriptor = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY)
        os.write(descriptor, b"0")
        os.close(descriptor)


def _signals_as_bytes() -> int:
    """Signals arrive as bytes on the descriptor that is returned."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Handlers and not SIG_IGN, which the engine would inherit.
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _reap(wanted: int) -> int | None:
    """Collect every child that ended; the wait status of `wanted` when it is among them."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                found = status
    return found


def _kill_descendants() -> int:
    """SIGKILL to every process below this one; how many there were."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    return len(children)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _lock(directory: ShardDir) -> int | None:
    """Take the lock; an agent that looks whether a holder lives has it for a moment."""
    end = time.monotonic() + LOCK_SECONDS
    while (descriptor := directory.lock()) is None and time.monotonic() < end:
        time.sleep(0.02)
    return descriptor


def main(arguments: list[str]) -> int:
    """Hold the shard of the directory; the exit codes are in the module's text."""
    wake = _signals_as_bytes()
    directory = ShardDir(Path(arguments[0]))
    if _lock(directory) is None:
        return _TAKEN
    try:
        spec, token = directory.spec()
    except RecordError as error:
        _complain(str(error))
        return _UNUSABLE
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Holder(directory, spec, token).run(wake)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
