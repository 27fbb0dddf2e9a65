"""The whole path, client to gateway to NVMe/TCP to a software card in memory, beside bare loopback TCP.

Bare TCP makes as many copies of a block: into the kernel and out of it. `loopback` is TCP as the machine has
it, `loopback-unpaced` leaves BBR as connections to cards do, and asks Linux for cores that wake up soon as
busy gateways and cards do. `ours-arena` leases memory of the gateway,
`ours-region` registers the client's, `ours-cached` is that with the gateway's read cache at its default size,
which adds the copy into the cache to every GET (each block is read once), and `ours-polling` has `busy_poll`
on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table

from bench.figures.labels import size_text
from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row, ratios
from bench.peers.measure import Case, Plan, Run
from bench.peers.measure import measure as run_caches

LIMITS = ("loopback", "loopback-unpaced")
CACHES = (*LIMITS, "ours-arena", "ours-region", "ours-cached", "ours-polling")
LEAST = 0.8
# Where the limits count: single blocks wait for every hand-over.
DEEP = 32


def measure(options: Options) -> Report:
    """All sizes and batches."""
    plan = plan_of(options, CACHES)
    runs = list(run_caches(plan, options.peers, options.directory))
    return report("path", plan, runs, list(_claims(plan, runs)))


def plan_of(options: Options, caches: Sequence[str], *, exists: bool = False) -> Plan:
    """What `--sizes`, `--batches` and `--quick` make of it."""
    sizes = [2 << 20] if options.quick else [256 << 10, 1 << 20, 2 << 20, 4 << 20]
    return Plan(
        caches=options.caches or caches,
        repeats=options.repeats,
        sizes=options.sizes or sizes,
        batches=options.batches or [1, DEEP],
        moved=(64 if options.quick else 256) << 20,
        exists=exists,
    )


def _claims(plan: Plan, runs: Sequence[Run]) -> Iterable[Claim]:
    for cache in (name for name in claimed(CACHES, plan) if name not in LIMITS):
        for op in ("put", "get"):
            for limit in LIMITS:
                yield least(runs, op, DEEP, cache, limit, LEAST)


def claimed(caches: Sequence[str], plan: Plan) -> list[str]:
    """The caches of a figure, whether or not the plan left some out, and what the plan has besides."""
    return list(dict.fromkeys([*caches, *plan.caches]))


def least(runs: Sequence[Run], op: str, batch: int, cache: str, other: str, limit: float) -> Claim:
    """The claim that of the block sizes the least median ratio of the two caches is enough.

    It names the sizes, so that a run of some does not pass for one of all.
    """
    cases = {run.case for run in runs if (run.case.op, run.case.batch) == (op, batch)}
    what = f"{op} x{batch}, {cache} / {other}"
    if not cases or not {cache, other} <= {run.cache for run in runs}:
        return Claim(what, None, limit)
    found = [statistics.median(_ratios(runs, case, cache, other)) for case in cases]
    sizes = ", ".join(size_text(size) for size in sorted(case.size for case in cases))
    return Claim(f"{what}, least of {sizes}", min(found), limit)


def values(runs: Sequence[Run], case: Case, cache: str, field: str = "gb_per_s") -> list[float]:
    """Of one case and cache, by repeat."""
    return [getattr(run, field) for run in runs if (run.case, run.cache) == (case, cache)]


def _ratios(runs: Sequence[Run], case: Case, cache: str, other: str) -> list[float]:
    return ratios(values(runs, case, cache), values(runs, case, other))


def report(figure: str, plan: Plan, runs: Sequence[Run], claims: list[Claim]) -> Report:
    """Rows of speed and of CPU for each case and cache."""
    # Bare TCP stores nothing that could be wrong.
    wrong = [run.wrong for run in runs if run.cache not in LIMITS]
    claims.append(Claim("wrong blocks", sum(wrong) if wrong else None, 0, at_most=True))
    conditions = {"moved_bytes_of_a_run": plan.moved, "cards": 1, "workers": 1}
    rows = [row for case in plan.cases() for cache in plan.caches for row in _rows(runs, case, cache)]
    return Report(figure, rows, claims, conditions, _table(plan, runs))


def _rows(runs: Sequence[Run], case: Case, cache: str) -> Iterable[Row]:
    labels: dict[str, str | int] = {"cache": cache, "op": case.op, "size": case.size, "batch": case.batch}
    name = f"{case}, {cache}"
    if case.op == "exists":
        yield Row(name, "keys/s", values(runs, case, cache, "keys_per_s"), labels | {"field": "keys_per_s"})
        return
    yield Row(name, "GB/s", values(runs, case, cache), labels | {"field": "gb_per_s"})
    for field in ("client_cpu", "gateway_cpu", "servers_cpu"):
        found = values(runs, case, cache, field)
        yield Row(f"{name}, {field}", "CPU s/GB", found, labels | {"field": field})


def _table(plan: Plan, runs: Sequence[Run]) -> Table:
    """Medians, a row for each case."""
    title = (
        "GB/s, in brackets CPU s/GB of client + servers (of which our dataplane); exists in thousand keys/s"
    )
    table = Table(title=title)
    for heading in ("case", *plan.caches):
        table.add_column(heading)
    for case in plan.cases():
        table.add_row(str(case), *(_cell(runs, case, cache) for cache in plan.caches))
    return table


def _cell(runs: Sequence[Run], case: Case, cache: str) -> str:
    def median(field: str) -> float:
        return statistics.median(values(runs, case, cache, field))

    if case.op == "exists":
        return f"{median('keys_per_s') / 1000:.0f}"
    gateway = f" ({median('gateway_cpu'):.2f})" if median("gateway_cpu") else ""
    return f"{median('gb_per_s'):.2f} [{median('client_cpu'):.2f} + {median('servers_cpu'):.2f}{gateway}]"
