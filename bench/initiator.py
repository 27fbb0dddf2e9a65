"""`akv-bench initiator`: the NVMe/TCP initiator alone, by the native program `akv-initiator`."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

PROGRAM = "akv-initiator"
# Beyond the measurement itself: connecting, and writing what is to be read.
_START_SECONDS = 120.0


@dataclass(frozen=True)
class InitiatorSettings:
    """What to measure: every combination of operation, size, depth and way of waiting, interleaved."""

    target: str
    nqn: str
    ops: Sequence[str] = ("read", "write")
    sizes: Sequence[str] = ("64K",)
    depths: Sequence[int] = (1,)
    waiting: Sequence[str] = ("sleep",)
    seconds: float = 5.0
    repeats: int = 1
    more: Sequence[str] = ()  # arguments of the program as they are


@dataclass(frozen=True)
class Case:
    """One row of the result."""

    op: str
    size: str
    depth: int
    waiting: str = "sleep"


def measure_initiator(settings: InitiatorSettings) -> Iterator[dict[str, Any]]:
    """One record for each case once all repeats are done: medians, and the spread of the throughput.

    Raises ValueError with the program's own words where a case can't be measured.
    """
    cases = [Case(*case) for case in product(settings.ops, settings.sizes, settings.depths, settings.waiting)]
    runs: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(settings.repeats):
        for case in cases:
            runs[case].append(run_case(settings, case))
    for case in cases:
        yield summarize(case, runs[case])


def summarize(case: Case, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of one case."""
    speeds = [run["gb_per_s"] for run in runs]
    medians = {
        name: round(statistics.median(run[name] for run in runs), 4)
        for name in ("gb_per_s", "mib_per_s", "p50_us", "p99_us", "cpu_s_per_gb", "cpu_cores")
    }
    return {
        "op": case.op,
        "io_size": case.size,
        "qd": case.depth,
        "waiting": case.waiting,
        **medians,
        "gb_per_s_min": round(min(speeds), 4),
        "gb_per_s_max": round(max(speeds), 4),
        "runs": len(runs),
        "kind": runs[0]["kind"],
        "model": runs[0]["model"],
    }


def run_case(settings: InitiatorSettings, case: Case) -> dict[str, Any]:
    """One run of one case, as `akv-initiator` tells it. Raises ValueError with its words where it fails."""
    command = [_program(), "--target", settings.target, "--nqn", settings.nqn, "--op", case.op]
    command += ["--io-size", case.size, "--qd", str(case.depth), "--seconds", str(settings.seconds)]
    command += ["--waiting", case.waiting]
    limit = settings.seconds + _START_SECONDS
    try:
        done = subprocess.run(
            [*command, *settings.more], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{PROGRAM} did not end within {limit:.0f} s") from None
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"{done.stdout.strip()} ({PROGRAM}: exit {done.returncode})")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def _program() -> str:
    """The program beside this Python, where an installation puts it, or on PATH."""
    beside = Path(sys.executable).parent / PROGRAM
    found = str(beside) if beside.is_file() else shutil.which(PROGRAM)
    if found is None:
        raise ValueError(f"{PROGRAM} is neither beside {sys.executable} nor on PATH; run tools/setup")
    return found
