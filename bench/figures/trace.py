"""The published conversation trace on four cards: wrong blocks, hit ratio, balance, speed.

`trace` has cards with room for everything (12 GiB of blocks in all), `bounded` cards with room for 10,000
blocks in all, beside one exact LRU of as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dialogs import request_of
from bench.figures.options import Options
from bench.figures.record import Claim, Report, Row
from bench.pod import running_pod
from bench.run import ReplaySettings, Run, arena_bytes
from bench.simulate import LruCache
from bench.trace import BLOCK_TOKENS, locate_trace, read_trace
from controlplane.model.slots import match_slots
from integration.client import ClientConfig

CARDS = 4
BLOCK_BYTES = 65536
BOUND_BLOCKS = 10_000
# Of a value on a card (docs/protocol.md, "Values on a card"), and what a software card counts for its key.
ENVELOPE_BYTES = 64
PAIR_BYTES = 128
QUICK_REQUESTS = 300


@dataclass(frozen=True)
class Replayed:
    """One replay, and the keys that each card had afterwards."""

    summary: dict[str, Any]
    keys: list[int]

    @property
    def read_ratio(self) -> float:
        """Of all blocks, those that were read right: a block that is found and lost at once is no hit."""
        return float(self.summary["got_blocks"] / self.summary["blocks"])

    @property
    def fullest(self) -> float:
        """The fullest card against the mean."""
        return max(self.keys) * len(self.keys) / sum(self.keys)

    @property
    def blocks_per_s(self) -> float:
        """Read and stored, in the time of the calls."""
        spent = self.summary["got_blocks"] + self.summary["put_ok_blocks"]
        return float(spent / self.summary["seconds"])


def measure(options: Options) -> Report:
    """Cards with room for everything."""
    runs = [_replay(options, number, 4 << 30) for number in range(options.repeats)]
    misfit = [run.summary["measured_hit_ratio"] - run.summary["expected_hit_ratio"] for run in runs]
    claims = [
        Claim("hit ratio, farthest from the simulation", max(map(abs, misfit)), 0, at_most=True),
        # These cards drop nothing. Bounded ones may, between the lookup and the GET.
        Claim("blocks found but not read", _total(runs, "unread_blocks"), 0, at_most=True),
        Claim("fullest card / mean", max(run.fullest for run in runs), 1.1, at_most=True),
    ]
    return _report("trace", options, runs, claims)


def measure_bounded(options: Options) -> Report:
    """Cards with room for 10,000 blocks in all."""
    capacity = BOUND_BLOCKS // CARDS * (BLOCK_BYTES + ENVELOPE_BYTES + PAIR_BYTES)
    runs = [_replay(options, number, capacity) for number in range(options.repeats)]
    lru = lru_hit_ratio(_trace(options), _requests(options), BOUND_BLOCKS)
    least = min(run.read_ratio for run in runs)
    claims = [
        Claim("hit ratio of blocks read, least of all runs, against exact LRU", least, lru),
        Claim("keys on all cards", max(sum(run.keys) for run in runs), BOUND_BLOCKS, at_most=True),
    ]
    report = _report("bounded", options, runs, claims)
    report.rows.append(Row("hit ratio of one exact LRU", "", [lru]))
    return report


def lru_hit_ratio(trace: Path, requests: int | None, capacity: int) -> float:
    """What one LRU of `capacity` blocks would find of the trace."""
    cache, blocks, matched = LruCache(capacity), 0, 0
    for row in read_trace(trace, limit=requests):
        request = request_of(row)
        matched += cache.serve(request)
        blocks += len(request.keys)
    return matched / blocks


def _replay(options: Options, number: int, capacity: int) -> Replayed:
    trace, directory = _trace(options), options.directory / str(number)
    directory.mkdir()
    # No copies: the cards are what is measured.
    with running_pod(directory, cards=CARDS, capacity=capacity, read_cache_size=0) as pod:
        settings = ReplaySettings(
            trace=trace,
            requests=_requests(options),
            start=0,
            loop=False,
            block_bytes=BLOCK_BYTES,
            block_tokens=BLOCK_TOKENS,
            affinity_blocks=None,
            slots=tuple(match_slots(card.serial for card in pod.cards)),
            json_lines=False,
        )
        config = ClientConfig(socket=str(pod.socket), arena_bytes=arena_bytes(BLOCK_BYTES))
        summary = Run(settings, config).execute()
        return Replayed(summary, [card.control("stats")["keys"] for card in pod.cards])


def _trace(options: Options) -> Path:
    trace = options.trace or locate_trace()
    if trace is None:
        raise ValueError("no trace beside the repository; name one: TRACE=FILE")
    return trace


def _requests(options: Options) -> int | None:
    return options.requests or (QUICK_REQUESTS if options.quick else None)


def _report(figure: str, options: Options, runs: list[Replayed], claims: Iterable[Claim]) -> Report:
    rows = [
        _row(runs, "measured_hit_ratio", "hit ratio", ""),
        Row("hit ratio of blocks read", "", [run.read_ratio for run in runs]),
        _row(runs, "unread_blocks", "found but not read", "blocks"),
        _row(runs, "expected_hit_ratio", "hit ratio of unlimited cards, simulated", ""),
        Row("fullest card / mean", "", [run.fullest for run in runs]),
        Row("blocks read and stored, verification included", "blocks/s", [run.blocks_per_s for run in runs]),
        _row(runs, "get_mb_per_s", "GET", "MB/s"),
        _row(runs, "put_mb_per_s", "PUT", "MB/s"),
        _row(runs, "seconds", "whole replay", "s"),
    ]
    faults = [Claim(name, _total(runs, key), 0, at_most=True) for key, name in _FAULTS]
    conditions = {
        "requests": runs[0].summary["requests"],
        "blocks_read": runs[0].summary["got_blocks"],
        "blocks_stored": runs[0].summary["put_ok_blocks"],
        "cards": CARDS,
        "block_bytes": BLOCK_BYTES,
        "read_cache_size": 0,
        "trace": _trace(options).name,
    }
    return Report(figure, rows, [*faults, *claims], conditions)


_FAULTS = (("wrong_blocks", "wrong blocks"), ("errors", "calls in error"))


def _total(runs: list[Replayed], key: str) -> int:
    return sum(run.summary[key] for run in runs)


def _row(runs: list[Replayed], key: str, name: str, unit: str) -> Row:
    return Row(name, unit, [run.summary[key] for run in runs])
