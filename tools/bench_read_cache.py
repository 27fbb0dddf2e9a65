"""Hit ratios of the read cache's policy and of LRU on a trace of requests.

Usage: bench_read_cache.py [TRACE]

Replays the GETs that the cards of a gateway would see: of each request the longest prefix that was stored
before. Prints for each capacity, in blocks, the share of GETs that an LRU and the gateway's policy
(dataplane/core/arena/s3_fifo.hpp) answer; then the same with a scan of new blocks after every 100 requests.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from bench.trace import BLOCK_TOKENS, locate_trace, read_trace
from dataplane._native import read_cache_hits

CAPACITIES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SCAN_EVERY = 100
SCAN_BLOCKS = 2000


def gets(trace: Path, scan_blocks: int) -> Iterator[int]:
    """The blocks that are read, in order; blocks of scans have numbers beyond those of the trace."""
    stored: set[int] = set()
    scanned = 1 << 62
    for number, row in enumerate(read_trace(trace), start=1):
        blocks = row.hash_ids[: row.full_blocks(BLOCK_TOKENS)]
        yield from takewhile(stored.__contains__, blocks)
        stored.update(blocks)
        if scan_blocks and number % SCAN_EVERY == 0:
            yield from range(scanned, scanned + scan_blocks)
            scanned += scan_blocks


def lru_hits(accesses: list[int], capacity: int) -> int:
    """What an LRU of `capacity` blocks would answer."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in accesses:
        if block in cache:
            cache.move_to_end(block)
            hits += 1
            continue
        cache[block] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def main() -> int:
    """Entry point; the exit code."""
    trace = Path(sys.argv[1]) if len(sys.argv) > 1 else locate_trace()
    if trace is None:
        print("bench_read_cache: no trace beside the repository; name one", file=sys.stderr)
        return 2
    for title, scan_blocks in (("trace", 0), ("trace with scans", SCAN_BLOCKS)):
        accesses = list(gets(trace, scan_blocks))
        print(f"{title}: {len(accesses)} GETs of {len(set(accesses))} blocks")
        for capacity in CAPACITIES:
            lru = lru_hits(accesses, capacity) / len(accesses)
            ours = read_cache_hits(accesses, capacity) / len(accesses)
            print(f"  {capacity:6} blocks  LRU {lru:7.2%}  S3-FIFO {ours:7.2%}  ratio {ours / lru:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
