"""Measure how long it takes from a fault to the gateways' routing: `python -m tools.fault_times` as root.

Three storage hosts and two gateways on network namespaces, at the intervals of production unless told
otherwise. A time ends when *both* gateways use exactly the cards that they should. Prints the table of
docs/operations.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.hosts import why_no_namespaces
from tests.support.scene.scene import PRODUCTION, Pace, Scene, three_hosts
from tests.support.scene.times import CASES, Case


def main() -> None:
    """Entry point."""
    options = _options()
    problem = why_no_namespaces()
    if problem:
        sys.exit(f"fault_times: {problem}")
    pace = replace(PRODUCTION, cycle_seconds=options.cycle, poll_ms=options.poll_ms)
    chosen = [case for case in CASES if not options.only or case.__name__ in options.only]
    with (
        tempfile.TemporaryDirectory(prefix="akv-times-") as directory,
        three_hosts(Path(directory), pace) as scene,
    ):
        times = _measure(scene, chosen, options.repeat)
    print(_table(times, pace))


def _measure(scene: Scene, cases: list[Case], repeat: int) -> dict[str, list[float]]:
    """Seconds by what was measured; all is well before each measurement."""
    times: dict[str, list[float]] = {}
    phase = random.Random(1)
    # Round by round: in each another leader is elected, which has not seen the cards' earlier troubles.
    for _ in range(repeat):
        for case in cases:
            scene.heal()
            # A fault falls anywhere in a cycle: spread them, so that the median is not that of one phase.
            time.sleep(phase.uniform(0, scene.pace.cycle_seconds))
            for reading in case(scene):
                times.setdefault(reading.what, []).append(reading.seconds)
                print(f"{reading.what}: {reading.seconds:.2f} s", file=sys.stderr, flush=True)
    return times


def _table(times: dict[str, list[float]], pace: Pace) -> str:
    load = os.getloadavg()[1]
    rows = [
        f"| {what} | {statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} | {len(found)} |"
        for what, found in times.items()
    ]
    head = f"{os.cpu_count()} cores, load of the last five minutes {load:.1f}; "
    head += f"AWC_CYCLE_SECONDS {pace.cycle_seconds:g}, cluster_poll_ms {pace.poll_ms}, "
    head += f"io_timeout_ms {pace.io_timeout_ms}"
    return "\n".join([head, "", "| event | median, s | range, s | n |", "| --- | --- | --- | --- |", *rows])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each case (%(default)s)")
    parser.add_argument(
        "--cycle", type=float, default=PRODUCTION.cycle_seconds, help="AWC_CYCLE_SECONDS (%(default)s)"
    )
    parser.add_argument(
        "--poll-ms", type=int, default=PRODUCTION.poll_ms, help="cluster_poll_ms (%(default)s)"
    )
    names = [case.__name__ for case in CASES]
    parser.add_argument("--only", nargs="*", choices=names, default=[], help="cases; default: all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
