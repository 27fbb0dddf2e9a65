"""Percentiles of any number of values in bounded memory."""

from __future__ import annotations

import math
from collections import Counter

# Neighbouring buckets differ by 2 %: a percentile is that exact.
_BASE = math.log(1.02)


class Histogram:
    """Counts positive values in logarithmic buckets."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._count = 0

    def add(self, value: float, weight: int = 1) -> None:
        """Count `value` `weight` times."""
        self._buckets[math.floor(math.log(max(value, 1e-9)) / _BASE)] += weight
        self._count += weight

    def percentile(self, percent: float) -> float | None:
        """The value that `percent` % of all values do not exceed, within 2 %; None when there are none."""
        if self._count == 0:
            return None
        wanted = math.ceil(self._count * percent / 100)
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return math.exp((bucket + 1) * _BASE)
        raise AssertionError("buckets hold fewer values than were counted")
