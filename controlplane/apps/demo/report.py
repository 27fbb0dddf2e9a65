"""What the demo ends with: the table for people, the JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from controlplane.apps.demo.errors import DemoError

# Columns of the table where no terminal tells its own.
_PLAIN_WIDTH = 120

NAMES = (
    "three cards hit as an exact simulation predicts",
    "a killed card costs only its own dialogs",
    "the card that comes back hits again",
    "a fourth card is used within two polls",
    "a suspended etcd changes nothing for clients",
    "the dataplane serves on without its control process",
    "a killed client's memory comes back",
)


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: kept or broken, and the figures."""

    name: str
    kept: bool
    detail: str

    def record(self) -> dict[str, Any]:
        """As in the report."""
        return {"name": self.name, "kept": self.kept, "detail": self.detail}


@dataclass
class Report:
    """Filled while the story goes on; complete at its end. Ratios of 1, rates in 10^6 bytes a second."""

    requests: int
    block_bytes: int
    trace: str
    trace_generated: bool
    promises: list[Promise] = field(default_factory=list)
    expected_hit_ratio: float | None = None
    measured_hit_ratio: float | None = None
    wrong_blocks: int = 0
    client_errors: int = 0
    spread: Mapping[str, int] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""

    @property
    def good(self) -> bool:
        """Every promise was kept, and no block was wrong."""
        return (
            len(self.promises) == len(NAMES)
            and all(promise.kept for promise in self.promises)
            and self.wrong_blocks == 0
            and not self.failure
        )

    def complete(self) -> None:
        """Promises that the story did not come to are broken."""
        for name in NAMES[len(self.promises) :]:
            self.promises.append(Promise(name, False, "not reached"))

    def record(self) -> dict[str, Any]:
        """Everything by name."""
        return {
            "requests": self.requests,
            "block_bytes": self.block_bytes,
            "trace": self.trace,
            "trace_generated": self.trace_generated,
            "promises": [promise.record() for promise in self.promises],
            "wrong_blocks": self.wrong_blocks,
            "client_errors": self.client_errors,
            "expected_hit_ratio": self.expected_hit_ratio,
            "measured_hit_ratio": self.measured_hit_ratio,
            "spread": dict(self.spread),
            **{name: self.replay.get(name) for name in _RATES},
            "replayed_requests": self.replay.get("all_passes", {}).get("requests"),
            "seconds": round(self.seconds, 1),
            "failure": self.failure,
        }


_RATES = (
    "requests_per_second",
    "get_mb_per_s",
    "put_mb_per_s",
    "get_block_us",
    "got_blocks",
    "put_ok_blocks",
)


def check_report_place(path: Path) -> None:
    """Raise DemoError where the report can't be written: better at once than after the story."""
    if not path.parent.is_dir():
        raise DemoError(f"--report {path}: its folder does not exist; create it, or name another")
    if path.is_dir():
        raise DemoError(f"--report {path}: is a directory; name a file in it")
    probe = _temporary(path)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise DemoError(
            f"--report {path}: its folder can't be written: {error.strerror}; name another"
        ) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_report(report: Report, path: Path) -> None:
    """Write the JSON; a reader sees the old file or the whole new one."""
    temporary = _temporary(path)
    temporary.write_text(json.dumps(report.record(), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def print_report(report: Report) -> None:
    """The table and the figures, on standard output."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(_table(report.promises))
    for line in _figures(report):
        console.print(line, markup=False, soft_wrap=True)


def _table(promises: Sequence[Promise]) -> Table:
    table = Table(title="The seven promises", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("promise")
    table.add_column("")
    table.add_column("measured")
    for number, promise in enumerate(promises, start=1):
        verdict = "[green]kept[/green]" if promise.kept else "[red]BROKEN[/red]"
        table.add_row(str(number), promise.name, verdict, promise.detail)
    return table


def _figures(report: Report) -> list[str]:
    lines = []
    if report.measured_hit_ratio is not None and report.expected_hit_ratio is not None:
        lines.append(
            f"hit ratio       measured {report.measured_hit_ratio:.5f}, "
            f"expected {report.expected_hit_ratio:.5f} (undisturbed pass over {report.requests} requests)"
        )
    if report.replay:
        latency = report.replay["get_block_us"]
        lines += [
            f"throughput      {report.replay['requests_per_second']} requests/s, "
            f"GET {report.replay['get_mb_per_s']} MB/s, PUT {report.replay['put_mb_per_s']} MB/s "
            f"(blocks of {report.block_bytes} bytes, every byte checked, one client)",
            f"GET per block   p50 {latency['p50']} us, p99 {latency['p99']} us",
        ]
    if report.spread:
        spread = ", ".join(f"{serial} {count}" for serial, count in report.spread.items())
        lines.append(f"dialogs         {spread}")
    lines.append(f"client errors: {report.client_errors}")
    lines.append(f"wrong blocks: {report.wrong_blocks}")
    if report.failure:
        lines.append(f"failed: {report.failure}")
    return lines
