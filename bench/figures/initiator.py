"""The initiator alone, on the second core, against a target on the first one.

With `--spdk TREE` the target is SPDK's, with a block namespace in memory, and `spdk_nvme_perf` is measured in
turn against the same one. Otherwise the target is a software card. Ours waits for answers in each of its
ways.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from bench.figures import spdk
from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row, ratios
from bench.initiator import Case, InitiatorSettings, run_case
from bench.order import in_turn
from bench.pod import HOST, running_card

TARGET_CORE, INITIATOR_CORE = 0, 1
OPS = ("read", "write")
SECONDS = 1
SIZES = (64 << 10, 256 << 10, 1 << 20, 2 << 20)
DEPTHS = (1, 8, 32)
# How ours waits (`akv-initiator --waiting`), and by what name that is told.
WAYS = {"sleep": "ours-sleeping", "adaptive": "ours-adaptive", "poll": "ours-polling"}
LIMIT, LIMIT_NOT_BUSY = 1.0, 0.9


@dataclass
class Way:
    """Values of our initiator in one case, waiting in one way, by repeat."""

    gb_per_s: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)


@dataclass
class Figures:
    """Values of one case by repeat."""

    ours: dict[str, Way] = field(default_factory=lambda: {name: Way() for name in WAYS})
    theirs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """Where commands go."""

    port: int
    nqn: str


def measure(options: Options) -> Report:
    """Every operation, size and depth."""
    sizes = options.sizes or ((2 << 20,) if options.quick else SIZES)
    cases = [Case(*case) for case in product(OPS, map(str, sizes), options.batches or DEPTHS)]
    figures = {case: Figures() for case in cases}
    with _target(options) as target, pinned(INITIATOR_CORE):
        for repeat in range(options.repeats):
            for case in cases:
                _one(options.spdk, target, case, repeat, figures[case])
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


def _one(tree: Path | None, target: Target, case: Case, repeat: int, into: Figures) -> None:
    """Each of our ways and theirs once, in a random order."""
    settings = InitiatorSettings(f"{HOST}:{target.port}", target.nqn, seconds=SECONDS)

    def ours(name: str, way: Way) -> None:
        ran: dict[str, Any] = run_case(settings, replace(case, waiting=name))
        way.gb_per_s.append(ran["gb_per_s"])
        way.cores.append(ran["cpu_cores"])
        way.p99_us.append(ran["p99_us"])

    def theirs(tree: Path) -> None:
        into.theirs.append(spdk.perf(tree, target.port, case, SECONDS, INITIATOR_CORE))

    turns: list[Callable[[], None]] = [partial(ours, name, way) for name, way in into.ours.items()]
    if tree is not None:
        turns.append(partial(theirs, tree))
    for turn in in_turn(turns, repeat, case):
        turn()


def _report(figures: dict[Case, Figures], tree: Path | None) -> Report:
    rows = [row for case, found in figures.items() for row in _rows(case, found)]
    claims = [claim for op in OPS for claim in _claims(op, figures)]
    peer = "SPDK nvmf_tgt" if tree is not None else "akv-softcard"
    conditions = {
        "target": peer,
        "target_core": TARGET_CORE,
        "initiator_core": INITIATOR_CORE,
        "seconds": SECONDS,
    }
    return Report("initiator", rows, claims, conditions)


def _claims(op: str, figures: dict[Case, Figures]) -> Iterator[Claim]:
    beside_theirs = [_ratios(found) for case, found in figures.items() if case.op == op and found.theirs]
    best = (max(by_way.values()) for by_way in beside_theirs)
    yield Claim(
        f"{op}, ours in the best way / spdk_nvme_perf, least of all cases", min(best, default=None), LIMIT
    )
    lazy = (max(ratio for name, ratio in by_way.items() if name != "poll") for by_way in beside_theirs)
    yield Claim(
        f"{op}, ours without a core that polls / spdk_nvme_perf, least of all cases",
        min(lazy, default=None),
        LIMIT_NOT_BUSY,
    )


def _ratios(found: Figures) -> dict[str, float]:
    """Medians, by how ours waits."""
    return {name: statistics.median(ratios(way.gb_per_s, found.theirs)) for name, way in found.ours.items()}


def _rows(case: Case, found: Figures) -> Iterator[Row]:
    name = f"{case.op} {int(case.size) >> 10} KiB, depth {case.depth}"
    labels: dict[str, str | int] = {"op": case.op, "size": int(case.size), "batch": case.depth}
    for key, way in found.ours.items():
        ours = WAYS[key]
        yield _row(f"{name}, {ours}", "GB/s", way.gb_per_s, labels, "gb_per_s", ours)
        yield _row(f"{name}, {ours}, cores used", "", way.cores, labels, "cores", ours)
        yield _row(f"{name}, {ours}, p99", "us", way.p99_us, labels, "p99_us", ours)
        if found.theirs:
            values = ratios(way.gb_per_s, found.theirs)
            yield _row(f"{name}, {ours}, ratio", "", values, labels, "ratio", ours)
    if found.theirs:
        yield _row(f"{name}, spdk_nvme_perf", "GB/s", found.theirs, labels, "gb_per_s", "spdk_nvme_perf")


def _row(
    name: str, unit: str, values: Sequence[float], labels: dict[str, str | int], what: str, cache: str
) -> Row:
    return Row(name, unit, values, labels | {"field": what, "cache": cache})
