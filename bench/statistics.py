"""What a trace is like: sizes, and how much of it repeats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.histogram import Histogram
from bench.trace import TraceRow

_PERCENTS = (5, 25, 50, 75, 95, 99)


class TraceStatistics:
    """Fed row by row. Memory: the set of block names."""

    def __init__(self) -> None:
        self.requests = 0
        self.blocks = 0
        self.matched = 0
        self._seen: set[int] = set()
        self._first: set[int] = set()
        self._continued = 0
        self._last_ms = 0
        self._answers = 0
        self._length = Histogram()
        self._new = Histogram()

    def add(self, row: TraceRow) -> None:
        """Count one row."""
        size, matched = len(row.hash_ids), _prefix(row.hash_ids, self._seen)
        self.requests += 1
        self.blocks += size
        self.matched += matched
        self._first.add(row.hash_ids[0])
        self._length.add(size)
        if matched > 1:
            self._continued += 1
            self._new.add(max(size - matched, 0.5))
        self._seen.update(row.hash_ids)
        self._answers += row.output_length
        self._last_ms = row.timestamp

    def report(self) -> dict[str, Any]:
        """The figures by name; ratios of 1, times in seconds."""
        if self.requests == 0:
            raise ValueError("the trace has no rows")
        return {
            "requests": self.requests,
            "blocks": self.blocks,
            "distinct_blocks": len(self._seen),
            "distinct_first_blocks": len(self._first),
            "reuse": self.matched / self.blocks,
            "requests_that_continue": self._continued / self.requests,
            "seconds": self._last_ms / 1000,
            "blocks_per_request": _percentiles(self._length, self.blocks / self.requests),
            "new_blocks_of_continuations": _percentiles(self._new, None),
            "mean_output_tokens": self._answers / self.requests,
        }


def measure(rows: Iterable[TraceRow]) -> dict[str, Any]:
    """The figures of all rows."""
    statistics = TraceStatistics()
    for row in rows:
        statistics.add(row)
    return statistics.report()


def _prefix(blocks: tuple[int, ...], seen: set[int]) -> int:
    for index, block in enumerate(blocks):
        if block not in seen:
            return index
    return len(blocks)


def _percentiles(histogram: Histogram, mean: float | None) -> dict[str, float]:
    values = {f"p{percent}": histogram.percentile(percent) for percent in _PERCENTS}
    figures = {name: float(round(value)) for name, value in values.items() if value is not None}
    return figures if mean is None else {"mean": round(mean, 2), **figures}
