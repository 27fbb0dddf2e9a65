"""The host's etcd member as a child process that can't outlive the service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from controlplane.base.logging import get_logger
from controlplane.cluster.etcd_ends import last_words, log_size
from controlplane.cluster.etcd_runner import (
    LOG_FILE,
    OUTPUT_FILE,
    STOP_SECONDS,
    EtcdExit,
    EtcdStart,
    etcd_arguments,
    prepare_directories,
)

_GUARD = Path(__file__).with_name("child_guard.py")

log = get_logger("etcd-runner")


class ChildEtcd:
    """Runs etcd as a child.

    `program` finds the etcd server; it may block (a first start may unpack one), so it runs in a thread.
    """

    def __init__(self, program: Callable[[], Path]) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._log_dir = Path(os.devnull)
        self._log_start = 0

    @property
    def running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self, start: EtcdStart) -> None:
        """Start etcd; what it prints before its log is open, and panics, go to `etcd.out`."""
        program = await asyncio.to_thread(self._program)
        prepare_directories(start)
        self._log_dir, self._log_start = start.log_dir, log_size(start.log_dir / LOG_FILE)
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid())]
        descriptor = os.open(start.log_dir / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
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
        return EtcdExit(
            code, last_words(self._log_dir / LOG_FILE, self._log_start, self._log_dir / OUTPUT_FILE)
        )

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
