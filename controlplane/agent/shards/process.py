"""Processes by an identity that a reused pid does not have, and signals that reach nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_START_TIME_FIELD = 19  # of what follows the command name in /proc/PID/stat (proc(5): field 22)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A pid, when that process started (clock ticks since boot), and in which boot."""

    pid: int
    start_ticks: int
    boot_id: str

    def to_json(self) -> dict[str, Any]:
        """The fields, for a record."""
        return {"pid": self.pid, "start_ticks": self.start_ticks, "boot_id": self.boot_id}


def process_from_json(value: object) -> ProcessId:
    """Read what `to_json` wrote. Raises ValueError."""
    fields = value if isinstance(value, dict) else {}
    pid, ticks, boot = fields.get("pid"), fields.get("start_ticks"), fields.get("boot_id")
    if type(pid) is not int or type(ticks) is not int or not isinstance(boot, str) or pid <= 1:
        raise ValueError("a process has no pid, start_ticks and boot_id")
    return ProcessId(pid, ticks, boot)


def boot_id() -> str:
    """The kernel's name of this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def identify(pid: int) -> ProcessId | None:
    """The identity of a process that runs (a zombie does not), or None."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold spaces and parentheses
    if len(fields) <= _START_TIME_FIELD or fields[0] in {"Z", "X"}:
        return None
    return ProcessId(pid, int(fields[_START_TIME_FIELD]), boot_id())


def is_running(process: ProcessId) -> bool:
    """Whether this very process runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal this very process and no later one of its pid; False when it is gone. Raises PermissionError."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # Checked after the opening: from here on the descriptor can't turn into another process.
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def with_environment(entry: str) -> Iterator[ProcessId]:
    """Processes whose initial environment has this NAME=VALUE. Those that may not be read are left out."""
    wanted = entry.encode()
    for directory in PROC.iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        found = identify(int(directory.name))
        try:
            environment = (directory / "environ").read_bytes()
        except OSError:
            continue
        if found is not None and wanted in environment.split(b"\0"):
            yield found
