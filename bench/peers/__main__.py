"""Measure this project's whole path beside other caches, interleaved, with medians.

Usage: python -m bench.peers [--peers ours-region,mooncake] [--repeats 5] [--sizes 256K,1M] [--batches 1,32]

Each cache has one client thread, its own server processes, and values in memory behind a network; `loopback`
is bare TCP with as many copies. Every repeat runs every case of every cache in turn. GB are 10^9 bytes; CPU
is user and system time of the client and of the servers for each of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers.install import InstallError, install
from bench.peers.stages import OPENERS, Settings, Stage, opened
from bench.processes import ProcessError

# A cache may keep what was removed for a while (Mooncake's leases): it has room for several runs.
CAPACITY_RUNS = 8
KEYS_OF_EXISTS = 4096
ROUNDS_OF_EXISTS = 50
RUN_SECONDS = 300.0
Case = tuple[str, int, int]


def main() -> int:
    """Run it; 0 when all blocks came back right."""
    options = _options()
    try:
        with tempfile.TemporaryDirectory(prefix="akv-peers-") as directory:
            figures = _measure(options, Path(directory))
    except (InstallError, ProcessError, OSError) as error:
        print(f"bench.peers: {error}", file=sys.stderr)
        return 2
    wrong = sum(row["wrong"] for row in figures)
    if options.report is not None:
        options.report.write_text(json.dumps(figures, indent=2) + "\n")
    Console(width=120).print(_table(figures))
    print(f"wrong blocks: {wrong}")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=_names, default=list(OPENERS), help=f"of {', '.join(OPENERS)}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=_sizes, default=_sizes("256K,1M,2M,4M"))
    parser.add_argument("--batches", type=_sizes, default=[1, 32])
    parser.add_argument("--bytes", type=_size, default=_size("512M"), help="moved in each run (512M)")
    parser.add_argument("--report", type=Path, help="write every figure to this JSON file")
    parser.add_argument(
        "--install-dir",
        type=Path,
        default=Path("build/peers"),
        help="where the peers are installed (build/peers)",
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    unknown = set(text.split(",")) - OPENERS.keys()
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(OPENERS)}")
    return text.split(",")


def _size(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text if factor == 1 else text[:-1]) * factor


def _sizes(text: str) -> list[int]:
    return [_size(part) for part in text.split(",")]


def _measure(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    place = install(options.install_dir, options.peers)
    memory = max(max(options.sizes) * max(options.batches), KEYS_OF_EXISTS * 4096)
    figures = []
    with ExitStack() as stack:
        stages = {}
        for name in options.peers:
            own = directory / name
            own.mkdir()
            settings = Settings(place, own, memory, CAPACITY_RUNS * options.bytes)
            stages[name] = stack.enter_context(opened(name, settings))
        for repeat in range(options.repeats):
            for case in _cases(options):
                for name, stage in stages.items():
                    figures.append(_one(name, stage, case, options.bytes) | {"repeat": repeat})
                print(f"repeat {repeat + 1} of {options.repeats}: {_label(case)} done", file=sys.stderr)
    return figures


def _cases(options: argparse.Namespace) -> list[Case]:
    blocks = [
        (op, size, batch) for size in options.sizes for batch in options.batches for op in ("put", "get")
    ]
    return [*blocks, ("exists", 4096, KEYS_OF_EXISTS)]


def _one(name: str, stage: Stage, case: Case, size_of_run: int) -> dict[str, Any]:
    op, size, batch = case
    rounds = ROUNDS_OF_EXISTS if op == "exists" else max(1, size_of_run // (size * batch))
    if op == "exists":
        rounds = min(rounds, max(1, size_of_run // (size * batch)))
    _ask(stage, {"do": "prepare", "op": op, "size": size, "batch": batch, "rounds": rounds})
    before = sum(server.cpu_seconds for server in stage.servers)
    ran = _ask(stage, {"do": "run"})
    servers = sum(server.cpu_seconds for server in stage.servers) - before
    checked = _ask(stage, {"do": "finish"})
    moved = ran["blocks"] * size / 1e9
    wrong = 0 if name == "loopback" else checked["wrong"]
    return {
        "cache": name,
        "op": op,
        "size": size,
        "batch": batch,
        "gb_per_s": moved / ran["seconds"],
        "keys_per_s": ran["blocks"] / ran["seconds"],
        "cpu_s_per_gb": (ran["cpu_seconds"] + servers) / moved,
        "wrong": wrong,
    }


def _ask(stage: Stage, order: dict[str, Any]) -> dict[str, Any]:
    stage.worker.tell(json.dumps(order))
    answer: dict[str, Any] = json.loads(stage.worker.line(RUN_SECONDS))
    return answer


def _label(case: Case) -> str:
    op, size, batch = case
    return f"{op} {size >> 10} KiB x{batch}"


def _table(figures: list[dict[str, Any]]) -> Table:
    """Medians, one row for each case; CPU seconds for each GB in brackets."""
    cells: dict[tuple[Case, str], list[dict[str, Any]]] = defaultdict(list)
    for row in figures:
        cells[(row["op"], row["size"], row["batch"]), row["cache"]].append(row)
    cases = list(dict.fromkeys(case for case, _ in cells))
    names = list(dict.fromkeys(name for _, name in cells))
    table = Table(title="GB/s (CPU s/GB); exists in thousand keys/s; medians")
    for heading in ("case", *names):
        table.add_column(heading)
    for case in cases:
        table.add_row(_label(case), *(_cell(case, cells[case, name]) for name in names))
    return table


def _cell(case: Case, rows: list[dict[str, Any]]) -> str:
    if case[0] == "exists":
        return f"{statistics.median(row['keys_per_s'] for row in rows) / 1000:.0f}"
    speed = statistics.median(row["gb_per_s"] for row in rows)
    return f"{speed:.2f} ({statistics.median(row['cpu_s_per_gb'] for row in rows):.2f})"


if __name__ == "__main__":
    sys.exit(main())
