"""EXISTS and match_prefix of 4,096 keys that the gateway has copies of, and of keys only the card knows."""

from __future__ import annotations

from typing import Any

from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row
from bench.lookups import measure_lookups
from bench.pod import running_pod
from integration.client import connect

BATCH = 4096
# Million keys/s of EXISTS at least, milliseconds of match_prefix at most.
LIMITS = {"known": (2.0, 2.0), "unknown": (0.6, 8.0)}


def measure(options: Options) -> Report:
    """One card, one worker, one client. Every answer is checked."""
    calls = 10 if options.quick else 100
    with (
        running_pod(options.directory, capacity=1 << 28) as pod,
        connect(socket=str(pod.socket), strict=True, arena_bytes=1 << 20, timeout=30.0) as client,
    ):
        records = list(measure_lookups(client, BATCH, calls, options.repeats))
    claims = [_claim(record) for record in records]
    conditions = {"keys_of_a_call": BATCH, "calls_of_a_run": calls, "cards": 1, "workers": 1}
    return Report("lookups", [row for record in records for row in _rows(record)], claims, conditions)


def _rows(record: dict[str, Any]) -> list[Row]:
    name = f"{record['call']}, keys {record['keys']} to the gateway"
    return [
        Row(name, "million keys/s", record["mkeys_per_s_of_runs"]),
        Row(f"{name}, p50 of a call", "ms", record["p50_ms_of_runs"]),
    ]


def _claim(record: dict[str, Any]) -> Claim:
    speed, milliseconds = LIMITS[record["keys"]]
    if record["call"] == "exists":
        return Claim(f"exists, million keys/s, keys {record['keys']}", record["mkeys_per_s"], speed)
    return Claim(
        f"match_prefix, p50 in ms, keys {record['keys']}", record["p50_ms"], milliseconds, at_most=True
    )
