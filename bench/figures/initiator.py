"""The initiator alone, on the second core, against a target on the first one.

With `--spdk TREE` the target is SPDK's, with a block namespace in memory, and `spdk_nvme_perf` is measured in
turn against the same one. Otherwise the target is a software card.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from bench.figures import spdk
from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row, ratios
from bench.initiator import Case, InitiatorSettings, run_case
from bench.pod import HOST, running_card

TARGET_CORE, INITIATOR_CORE = 0, 1
SIZES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
DEPTHS = (1, 8, 32)


@dataclass
class Figures:
    """Values of one case by repeat."""

    ours: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """Where commands go."""

    port: int
    nqn: str


def measure(options: Options) -> Report:
    """Every operation, size and depth."""
    sizes = options.sizes or ((2 << 20,) if options.quick else SIZES)
    cases = [Case(*case) for case in product(("read", "write"), map(str, sizes), options.batches or DEPTHS)]
    figures = {case: Figures() for case in cases}
    with _target(options) as target, pinned(INITIATOR_CORE):
        for _ in range(options.repeats):
            for case in cases:
                _one(options.spdk, target, case, figures[case])
    return _report(figures, options.spdk)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """This thread, and the programs that it starts, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _target(options: Options) -> Iterator[Target]:
    with pinned(TARGET_CORE):
        if options.spdk is not None:
            with spdk.target(options.spdk, options.directory, TARGET_CORE) as port:
                yield Target(port, spdk.NQN)
            return
        with running_card(options.directory, 0, 1 << 30) as card:
            yield Target(card.port, card.nqn)


def _one(tree: Path | None, target: Target, case: Case, into: Figures) -> None:
    settings = InitiatorSettings(f"{HOST}:{target.port}", target.nqn, seconds=1.0)
    ran: dict[str, Any] = run_case(settings, case)
    into.ours.append(ran["gb_per_s"])
    into.cores.append(ran["cpu_cores"])
    into.p99_us.append(ran["p99_us"])
    if tree is not None:
        into.theirs.append(spdk.perf(tree, target.port, case, 1, INITIATOR_CORE))


def _report(figures: dict[Case, Figures], tree: Path | None) -> Report:
    rows = [row for case, found in figures.items() for row in _rows(case, found)]
    claims = []
    for op in ("read", "write") if tree is not None else ():
        found = [row.median for row in rows if row.labels.get("field") == "ratio" and row.labels["op"] == op]
        claims.append(Claim(f"{op}, ours / spdk_nvme_perf, least of all cases", min(found), 1.0))
    peer = "SPDK nvmf_tgt" if tree is not None else "akv-softcard"
    conditions = {"target": peer, "target_core": TARGET_CORE, "initiator_core": INITIATOR_CORE, "seconds": 1}
    return Report("initiator", rows, claims, conditions)


def _rows(case: Case, found: Figures) -> Iterator[Row]:
    name = f"{case.op} {int(case.size) >> 10} KiB, depth {case.depth}"
    labels: dict[str, str | int] = {"op": case.op, "size": int(case.size), "batch": case.depth}
    yield _row(f"{name}, ours", "GB/s", found.ours, labels, "gb_per_s", "ours")
    yield _row(f"{name}, ours, cores used", "", found.cores, labels, "cores", "ours")
    yield _row(f"{name}, ours, p99", "us", found.p99_us, labels, "p99_us", "ours")
    if found.theirs:
        yield _row(f"{name}, spdk_nvme_perf", "GB/s", found.theirs, labels, "gb_per_s", "spdk_nvme_perf")
        yield _row(f"{name}, ratio", "", ratios(found.ours, found.theirs), labels, "ratio", "ours")


def _row(
    name: str, unit: str, values: Sequence[float], labels: dict[str, str | int], what: str, cache: str
) -> Row:
    return Row(name, unit, values, labels | {"field": what, "cache": cache})
