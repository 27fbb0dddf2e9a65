"""Draw throughput by block size and depth: `make performance`, or `python -m bench.figures.plot IN OUT`.

Of each of `path`, `peers` and `initiator` that has a JSON file in the folder IN an SVG is written to the
folder OUT: a panel for each operation and depth (blocks of a call, or commands outstanding), a line for each
cache or program, medians with the least and the greatest value.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures.labels import DRAWN, size_text, unique

# One colour for each name in every plot.
COLOURS = {
    "loopback": "#888888",
    "loopback-unpaced": "#cccccc",
    "ours-arena": "#1f77b4",
    "ours-region": "#08306b",
    "ours-cached": "#6baed6",
    "ours-polling": "#41ab5d",
    "ours-sleeping": "#08306b",
    "ours-adaptive": "#1f77b4",
    "mooncake": "#d62728",
    "lmcache-resp": "#ff7f0e",
    "redis-py": "#9467bd",
    "spdk_nvme_perf": "#d62728",
}
_PANEL_INCHES = (4.2, 3.2)


def main() -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        "bench.figures.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN", help="folder of JSON files of figures")
    parser.add_argument("output", type=Path, metavar="OUT", help="folder of SVG files")
    options = parser.parse_args()
    found = [name for name in DRAWN if (options.source / f"{name}.json").is_file()]
    if not found:
        print(f"plot: {options.source} has none of {', '.join(DRAWN)}; take one first", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    for name in found:
        record = json.loads((options.source / f"{name}.json").read_text())
        print(draw(record, options.output / f"{name}.svg"))
    return 0


def draw(record: dict[str, Any], path: Path) -> Path:
    """Write the SVG of one figure; the same record makes the same bytes."""
    rows = [row for row in record["rows"] if row.get("field") == "gb_per_s"]
    ops, depths = unique(rows, "op"), sorted(unique(rows, "batch"))
    with mpl.rc_context({"svg.hashsalt": "akv", "svg.fonttype": "none", "font.size": 9}):
        width, height = _PANEL_INCHES
        figure = Figure(figsize=(width * len(depths), height * len(ops)), layout="constrained")
        panels = figure.subplots(len(ops), len(depths), sharex=True, sharey="row", squeeze=False)
        for op, line in zip(ops, panels, strict=True):
            for depth, axes in zip(depths, line, strict=True):
                _panel(
                    axes,
                    f"{op}, depth {depth}",
                    [row for row in rows if (row["op"], row["batch"]) == (op, depth)],
                )
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        machine = record["machine"]
        figure.suptitle(
            f"{record['figure']}: {machine['cores']} cores, {machine['cpu']}, {machine['began'][:10]}"
        )
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _panel(axes: Axes, title: str, rows: Sequence[dict[str, Any]]) -> None:
    for name in unique(rows, "cache"):
        own = sorted((row for row in rows if row["cache"] == name), key=lambda row: int(row["size"]))
        sizes, medians = [row["size"] for row in own], [row["median"] for row in own]
        below = [row["median"] - row["least"] for row in own]
        above = [row["greatest"] - row["median"] for row in own]
        axes.errorbar(
            sizes,
            medians,
            yerr=[below, above],
            label=name,
            color=COLOURS.get(name),
            marker="o",
            markersize=3,
            linewidth=1.2,
            capsize=2,
        )
    axes.set_title(title)
    axes.set_xscale("log", base=2)
    ticks = sorted({int(row["size"]) for row in rows})
    axes.set_xticks(ticks, [size_text(size) for size in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("block size")
    axes.set_ylabel("GB/s")
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    sys.exit(main())
