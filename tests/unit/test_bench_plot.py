"""The plots of docs/performance.md; `make check` and `make performance` install what draws them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.figures.record import Report, Row

plot = pytest.importorskip("bench.figures.plot", reason="matplotlib is not installed: tools/setup plots")


def test_a_plot_has_a_panel_for_each_depth_and_the_same_bytes_again(tmp_path: Path) -> None:
    rows = [
        Row(
            "",
            "GB/s",
            [speed, speed + 1],
            {"cache": cache, "op": op, "size": size, "batch": batch, "field": "gb_per_s"},
        )
        for op in ("put", "get")
        for batch in (1, 32)
        for size in (256 << 10, 2 << 20)
        for cache, speed in (("loopback", 2.0), ("ours-region", 1.8))
    ]
    machine = {"cores": 2, "cpu": "Example", "began": "2026-01-31T00:00:00+00:00"}
    record = json.loads(json.dumps(Report("path", rows, [], {}).record([], machine)))
    text = plot.draw(record, tmp_path / "one.svg").read_text()
    for word in (
        "put, depth 1",
        "get, depth 32",
        "256 KiB",
        "2 MiB",
        "ours-region",
        "2 cores, Example, 2026-01-31",
    ):
        assert word in text
    assert plot.draw(record, tmp_path / "two.svg").read_text() == text
