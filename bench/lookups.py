"""`akv-bench lookups`: EXISTS and match_prefix, of keys that the gateway has copies of and of others."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from integration.client import Client, Status

# Blocks are small: only their keys are looked up.
BLOCK_BYTES = 512
_PART = 256


@dataclass(frozen=True)
class Case:
    """One kind of call, and over which keys."""

    call: str  # exists or match_prefix
    keys: str  # known or unknown: to the gateway, without its cards


CASES = tuple(Case(call, keys) for keys in ("known", "unknown") for call in ("exists", "match_prefix"))


def measure_lookups(client: Client, batch: int, calls: int, repeats: int) -> Iterator[dict[str, Any]]:
    """One record for each case once all repeats are done, interleaved; medians of the repeats.

    Raises ValueError where the gateway can't hold what is to be looked up.
    """
    dialog = int.from_bytes(os.urandom(8), "little")
    keys = {name: [os.urandom(32) for _ in range(batch)] for name in ("known", "unknown")}
    for stored in keys.values():
        _store(client, stored, dialog)
    _read(client, keys["known"], dialog)
    runs: dict[Case, list[list[float]]] = {case: [] for case in CASES}
    for _ in range(repeats):
        for case in CASES:
            runs[case].append(_times(_call(client, case, keys[case.keys], dialog), calls))
    for case, times in runs.items():
        speeds = [batch * calls / sum(run) / 1e6 for run in times]
        middles = [statistics.median(run) * 1e3 for run in times]
        yield {
            "call": case.call,
            "keys": case.keys,
            "batch": batch,
            "mkeys_per_s": round(statistics.median(speeds), 3),
            "mkeys_per_s_min": round(min(speeds), 3),
            "mkeys_per_s_max": round(max(speeds), 3),
            "p50_ms": round(statistics.median(middles), 3),
            "repeats": repeats,
            "mkeys_per_s_of_runs": [round(speed, 3) for speed in speeds],
            "p50_ms_of_runs": [round(middle, 3) for middle in middles],
        }


def _call(client: Client, case: Case, keys: Sequence[bytes], dialog: int) -> Callable[[], None]:
    """One call of the case; an answer that is not right ends the measurement."""

    def run() -> None:
        if case.call == "exists":
            found = client.exists(keys, dialog).count(True)
        else:
            found = client.match_prefix(keys, dialog)
        if found != len(keys):
            raise ValueError(f"{case.call}: {found} of {len(keys)} keys found; give the cards more room")

    return run


def _times(call: Callable[[], None], calls: int) -> list[float]:
    """Seconds of each call."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


def _store(client: Client, keys: Sequence[bytes], dialog: int) -> None:
    blocks = client.alloc(_PART, BLOCK_BYTES)
    for start in range(0, len(keys), _PART):
        part = keys[start : start + _PART]
        statuses = client.put(part, blocks[: len(part)], dialog)
        if statuses != [Status.OK] * len(part):
            raise ValueError("not all keys could be stored; are cards in use (see the status file)?")
    client.free(blocks)


def _read(client: Client, keys: Sequence[bytes], dialog: int) -> None:
    """So that the gateway keeps copies of all; it must have a read cache of 4 KiB for each key, twice."""
    before = client.stats()["cache_fills"]
    blocks = client.alloc(_PART, BLOCK_BYTES)
    for start in range(0, len(keys), _PART):
        part = keys[start : start + _PART]
        client.get(part, blocks[: len(part)], dialog)
    client.free(blocks)
    filled = client.stats()["cache_fills"] - before
    if filled != len(keys):
        raise ValueError(f"the gateway kept {filled} of {len(keys)} blocks: give it more read_cache_size")
