"""The summary of a replay: expected against measured, and how fast."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bench.histogram import Histogram
from bench.replay import Outcome


@dataclass
class HitCount:
    """Blocks asked for, found, and expected to be found."""

    requests: int = 0
    blocks: int = 0
    matched: int = 0
    expected: int = 0

    def add(self, blocks: int, matched: int, expected: int) -> None:
        """Count one request."""
        self.requests += 1
        self.blocks += blocks
        self.matched += matched
        self.expected += expected

    def record(self) -> dict[str, Any]:
        """Counts and ratios (of 1)."""
        blocks = max(self.blocks, 1)
        return {
            "requests": self.requests,
            "blocks": self.blocks,
            "matched_blocks": self.matched,
            "expected_blocks": self.expected,
            "measured_hit_ratio": self.matched / blocks,
            "expected_hit_ratio": self.expected / blocks,
        }


@dataclass
class Summary:
    """Totals of a replay. Memory does not grow with its length, but for the number of passes' first one."""

    block_bytes: int
    first_pass: HitCount = field(default_factory=HitCount)
    all_passes: HitCount = field(default_factory=HitCount)
    got: int = 0
    wrong: int = 0
    unread: int = 0
    put: int = 0
    put_ok: int = 0
    errors: int = 0
    get_s: float = 0.0
    put_s: float = 0.0
    passes: int = 0
    slots: Counter[int] = field(default_factory=Counter)
    get_block: Histogram = field(default_factory=Histogram)

    def add(self, outcome: Outcome, *, number: int, blocks: int, expected: int, slot: int) -> None:
        """Count one request of pass `number` (from 1)."""
        self.all_passes.add(blocks, outcome.matched, expected)
        if number == 1:
            self.first_pass.add(blocks, outcome.matched, expected)
            self.slots[slot] += 1
        self.got += outcome.got
        self.wrong += outcome.wrong
        self.unread += outcome.unread
        self.put += outcome.put
        self.put_ok += outcome.put_ok
        self.errors += outcome.errors
        self.get_s += outcome.get_s
        self.put_s += outcome.put_s
        if outcome.got:
            self.get_block.add(outcome.get_s / outcome.got, outcome.got)

    def record(self, seconds: float) -> dict[str, Any]:
        """Everything by name. Rates are while a GET or a PUT was under way, in 10^6 bytes a second."""
        return {
            **self.first_pass.record(),
            "passes": self.passes,
            "all_passes": self.all_passes.record(),
            "got_blocks": self.got,
            "wrong_blocks": self.wrong,
            "unread_blocks": self.unread,
            "put_blocks": self.put,
            "put_ok_blocks": self.put_ok,
            "errors": self.errors,
            "seconds": round(seconds, 3),
            "requests_per_second": self._rate(self.all_passes.requests, seconds),
            "get_mb_per_s": self._rate(self.got * self.block_bytes / 1e6, self.get_s),
            "put_mb_per_s": self._rate(self.put_ok * self.block_bytes / 1e6, self.put_s),
            "get_block_us": {name: self._microseconds(q) for name, q in (("p50", 50.0), ("p99", 99.0))},
            "requests_by_slot": {str(slot): count for slot, count in sorted(self.slots.items())},
        }

    def _microseconds(self, percent: float) -> float | None:
        value = self.get_block.percentile(percent)
        return None if value is None else round(value * 1e6, 1)

    @staticmethod
    def _rate(amount: float, seconds: float) -> float:
        return round(amount / seconds, 1) if seconds else 0.0


def readable(record: dict[str, Any]) -> str:
    """The summary as lines for a person."""
    latency = record["get_block_us"]
    lines = [
        f"requests          {record['requests']} in the first pass, {record['passes']} full passes",
        f"hit ratio         measured {record['measured_hit_ratio']:.5f}, expected "
        f"{record['expected_hit_ratio']:.5f} (first pass)",
        f"blocks            {record['got_blocks']} read, "
        f"{record['put_ok_blocks']} of {record['put_blocks']} stored",
        f"wrong blocks      {record['wrong_blocks']}",
        f"found, not read   {record['unread_blocks']} blocks",
        f"calls in error    {record['errors']}",
        f"speed             {record['requests_per_second']} requests/s, GET {record['get_mb_per_s']} MB/s, "
        f"PUT {record['put_mb_per_s']} MB/s",
        f"GET per block     p50 {latency['p50']} us, p99 {latency['p99']} us",
    ]
    return "\n".join(lines)
