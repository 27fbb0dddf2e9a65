"""The injected wall clock of tests: it jumps under a running process, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.support.clock import SkewedClock
from tests.support.procs import python_environment

SCRIPT = """
import datetime, sys, time
for _ in sys.stdin:
    now = datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(time.time(), now, time.monotonic(), flush=True)
"""


def test_the_clock_of_one_process_jumps_and_no_other(tmp_path: Path) -> None:
    clock = SkewedClock(tmp_path / "clock")
    command = [sys.executable, "-I", "-c", SCRIPT]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(clock.environment),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset in (0.0, 86_400.0, -3_600.0):
            clock.set(offset)
            process.stdin.write("\n")
            process.stdin.flush()
            wall, date, monotonic = map(float, process.stdout.readline().split())
            assert abs(wall - offset - time.time()) < 60
            assert abs(date - offset - time.time()) < 60
            assert abs(monotonic - time.monotonic()) < 60
        process.stdin.close()
