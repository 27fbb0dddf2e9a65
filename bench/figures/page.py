"""Write the tables of docs/performance.md from the records of figures: `make performance`.

`python -m bench.figures.page IN PAGE`: what stands in PAGE between `<!-- figure NAME -->` and `<!-- end
NAME -->` is replaced by the tables of IN/NAME.json; a figure without a record keeps what it has, and so does
one whose record is of a small trial (`--quick`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.figures.labels import DRAWN, size_text, unique

# What is measured for each cache or program, and how a table of it is called.
FIELDS = {
    "gb_per_s": "GB/s",
    "ratio": "GB/s of ours / GB/s of theirs",
    "keys_per_s": "keys/s",
    "client_cpu": "CPU s/GB of the client",
    "gateway_cpu": "CPU s/GB of our dataplane",
    "servers_cpu": "CPU s/GB of all servers, the dataplane included",
    "cores": "cores that ours used",
    "p99_us": "p99 of ours in us",
}
_PART = re.compile(r"<!-- figure (\w+) -->\n.*?<!-- end \1 -->", re.DOTALL)


def main() -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        "bench.figures.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN", help="folder of JSON files of figures")
    parser.add_argument("page", type=Path, metavar="PAGE", help="the page to rewrite")
    options = parser.parse_args()
    found = {path.stem: json.loads(path.read_text()) for path in sorted(options.source.glob("*.json"))}
    records = {name: record for name, record in found.items() if not is_trial(record)}
    before = options.page.read_text()
    parts = [match.group(1) for match in _PART.finditer(before)]
    options.page.write_text(rewritten(before, records))
    print(f"{options.page}: wrote {', '.join(name for name in parts if name in records) or 'nothing'}")
    if trials := found.keys() - records.keys():
        print(f"left out, small trials: {', '.join(sorted(trials))}", file=sys.stderr)
    return 0


def is_trial(record: dict[str, Any]) -> bool:
    """Whether it was taken with `--quick`: such values mean little."""
    return "--quick" in record["command"]


def rewritten(page: str, records: dict[str, dict[str, Any]]) -> str:
    """The page with the tables of every figure that has a record and a place."""

    def part(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in records:
            return match.group(0)
        return f"<!-- figure {name} -->\n{tables(records[name])}\n<!-- end {name} -->"

    return _PART.sub(part, page)


def tables(record: dict[str, Any]) -> str:
    """Markdown: where and when, what was wanted, and every row."""
    plain = [row for row in record["rows"] if "field" not in row]
    parts = [_where(record)]
    if record["claims"]:
        parts.append(_table(("wanted", "limit", "measured", ""), map(_claim, record["claims"])))
    if plain:
        parts.append(_table(("case", "median (least to greatest)", "unit"), map(_plain, plain)))
    for field, title in FIELDS.items():
        rows = [row for row in record["rows"] if row.get("field") == field and any(row["values"])]
        if rows:
            parts.append(f"{title}:\n\n{_pivot(rows)}")
    if record["figure"] in DRAWN:
        parts.append(f"![Throughput by block size and depth](plots/{record['figure']}.svg)")
    return "\n\n".join(parts)


def _where(record: dict[str, Any]) -> str:
    machine = record["machine"]
    conditions = ", ".join(f"{name} {value}" for name, value in record["conditions"].items())
    repeats = max(len(row["values"]) for row in record["rows"])
    return (
        f"`{' '.join(record['command'])}`, {machine['began'][:16].replace('T', ' ')} UTC, commit "
        f"{machine['commit']}: {machine['cores']} cores, {machine['cpu']}, Linux {machine['kernel']}, load "
        f"{machine['load_before']} before. {conditions}. Medians of {repeats}, in brackets the least and the "
        "greatest."
    )


def _claim(claim: dict[str, Any]) -> Sequence[str]:
    if claim["measured"] is None:
        return claim["what"], claim["wanted"], "not measured", ""
    verdict = "holds" if claim["holds"] else "**short**"
    return claim["what"], claim["wanted"], number(claim["measured"]), verdict


def _plain(row: dict[str, Any]) -> Sequence[str]:
    return row["case"], _spread(row), row["unit"]


def _pivot(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each case, a column for each cache or program."""
    names = unique(rows, "cache")
    by_case: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        by_case.setdefault((row["op"], row["size"], row["batch"]), {})[row["cache"]] = _spread(row)
    lines = (
        (f"{op} {size_text(size)} x{batch}", *(cells.get(name, "") for name in names))
        for (op, size, batch), cells in by_case.items()
    )
    return _table(("case", *names), lines)


def _table(headings: Sequence[str], lines: Iterator[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _spread(row: dict[str, Any]) -> str:
    if len(row["values"]) == 1:
        return number(row["median"])
    return f"{number(row['median'])} ({number(row['least'])} to {number(row['greatest'])})"


def number(value: float) -> str:
    """Three digits that count, thousands set apart."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
