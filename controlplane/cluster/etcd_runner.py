"""Runs the host's etcd member behind one interface: here as a child process, later also as a container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from controlplane.base.logging import get_logger

QUOTA_BYTES = 1 << 30
STOP_SECONDS = 3.0
_GUARD = Path(__file__).with_name("child_guard.py")
_TAIL_BYTES = 2000

log = get_logger("etcd-runner")


@dataclass(frozen=True, slots=True)
class EtcdStart:
    """One start of the host's member. etcd reads `initial_cluster`, `state` and `token` only without data."""

    name: str
    client_url: str
    peer_url: str
    data_dir: Path
    log_dir: Path
    initial_cluster: str
    state: Literal["new", "existing"]
    token: str


@dataclass(frozen=True, slots=True)
class EtcdExit:
    """How the member ended: exit code (negative: the signal) and the end of what it printed."""

    code: int
    last_words: str


class EtcdRunner(Protocol):
    """Starts, watches and stops one etcd member."""

    @property
    def running(self) -> bool:
        """Whether the member was started and has not ended."""

    async def start(self, start: EtcdStart) -> None:
        """Start the member; OSError when the program can't be run. Only when none runs."""

    async def wait(self) -> EtcdExit:
        """Wait for the member's end."""

    async def stop(self) -> None:
        """End the member and wait for it: asked first, killed after STOP_SECONDS. No-op when none runs."""


def etcd_arguments(start: EtcdStart) -> list[str]:
    """Return etcd's command line without the program."""
    flags = {
        "name": start.name,
        "data-dir": str(start.data_dir),
        "listen-client-urls": start.client_url,
        "advertise-client-urls": start.client_url,
        "listen-peer-urls": start.peer_url,
        "initial-advertise-peer-urls": start.peer_url,
        "initial-cluster": start.initial_cluster,
        "initial-cluster-state": start.state,
        "initial-cluster-token": start.token,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": str(QUOTA_BYTES),
        "log-outputs": str(start.log_dir / "etcd.log"),
        "enable-log-rotation": "true",
    }
    return [f"--{flag}={value}" for flag, value in flags.items()]


class ChildEtcd:
    """The member as a child process that can't outlive this one.

    `program` finds the etcd server; it may block (a first start may unpack one), so it runs in a thread.
    """

    def __init__(self, program: Callable[[], Path]) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._output = Path(os.devnull)

    @property
    def running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self, start: EtcdStart) -> None:
        """Start etcd; the data directory is the owner's alone."""
        program = await asyncio.to_thread(self._program)
        start.log_dir.mkdir(parents=True, exist_ok=True)
        start.data_dir.mkdir(parents=True, exist_ok=True)
        start.data_dir.chmod(0o700)
        self._output = start.log_dir / "etcd.out"  # what it prints before its log is open, and panics
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid())]
        descriptor = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *guard,
                str(program),
                *etcd_arguments(start),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
            )
        finally:
            os.close(descriptor)
        log.info("etcd started", etcd_pid=self._process.pid, state=start.state, data_dir=str(start.data_dir))

    async def wait(self) -> EtcdExit:
        """Wait for the child's end and reap it."""
        assert self._process is not None
        code = await self._process.wait()
        return EtcdExit(code, _tail(self._output))

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after STOP_SECONDS."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            log.warning("etcd killed", reason=f"it did not stop within {STOP_SECONDS:g} s")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _tail(path: Path) -> str:
    try:
        data = path.read_bytes()[-_TAIL_BYTES:]
    except OSError:
        return ""
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return " | ".join(lines[:1] + lines[1:][-3:])


def set_data_aside(data_dir: Path) -> None:
    """Make room for a clean start; one generation of old data stays as `member.previous`."""
    present, previous = data_dir / "member", data_dir / "member.previous"
    if present.exists():
        shutil.rmtree(previous, ignore_errors=True)
        present.rename(previous)
        log.warning("etcd data set aside", path=str(previous))
