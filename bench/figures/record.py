"""What a figure is made of: rows with every value, claims, the machine; as JSON and as a table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Group
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """One measured case: a value of each repeat. `labels` say the case to programs (the plot)."""

    case: str
    unit: str
    values: Sequence[float]
    labels: dict[str, str | int] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Of the repeats."""
        return statistics.median(self.values)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "case": self.case,
            "unit": self.unit,
            "median": self.median,
            "least": min(self.values),
            "greatest": max(self.values),
            "values": list(self.values),
            **self.labels,
        }


@dataclass(frozen=True)
class Claim:
    """What is wanted of a figure, and what came out; None: this run did not measure it."""

    what: str
    measured: float | None
    limit: float
    at_most: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the wanted was reached; None: not measured."""
        if self.measured is None:
            return None
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def record(self) -> dict[str, Any]:
        """As JSON."""
        wanted = f"{'at most' if self.at_most else 'at least'} {self.limit:g}"
        return {"what": self.what, "measured": self.measured, "wanted": wanted, "holds": self.holds}


@dataclass
class Report:
    """One figure. `conditions` say what was set up; `overview` is shown instead of all rows."""

    figure: str
    rows: list[Row]
    claims: list[Claim]
    conditions: dict[str, Any]
    overview: Table | None = None

    def record(self, command: Sequence[str], machine: dict[str, Any]) -> dict[str, Any]:
        """As JSON."""
        return {
            "figure": self.figure,
            "command": list(command),
            "machine": machine,
            "conditions": self.conditions,
            "rows": [row.record() for row in self.rows],
            "claims": [claim.record() for claim in self.claims],
        }

    def table(self) -> Group:
        """For a person."""
        return Group(self.overview or self._all_rows(), *(_sentence(claim) for claim in self.claims))

    def _all_rows(self) -> Table:
        rows = Table(title=self.figure)
        for heading in ("case", "median", "least", "greatest", "unit", "repeats"):
            rows.add_column(heading, justify="left" if heading in ("case", "unit") else "right")
        for row in self.rows:
            spread = (row.median, min(row.values), max(row.values))
            rows.add_row(row.case, *(f"{value:.4g}" for value in spread), row.unit, str(len(row.values)))
        return rows


def _sentence(claim: Claim) -> str:
    record = claim.record()
    if claim.measured is None:
        return f"{claim.what}: not measured, wanted {record['wanted']}"
    verdict = "holds" if claim.holds else "FALLS SHORT"
    return f"{claim.what}: {claim.measured:.4g}, wanted {record['wanted']}: {verdict}"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Of what was measured in the same repeat."""
    return [one / other for one, other in zip(above, below, strict=True)]


def machine_facts() -> dict[str, Any]:
    """Where and when a figure is taken, and how busy the machine is already."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    """The commit that is measured; None outside a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
