"""Take one figure of docs/performance.md: `make bench WHAT=NAME`, or `python -m bench.figures NAME`.

Every figure sets up what it measures on this machine, repeats everything interleaved, prints a table, and
writes each value, the conditions and the machine to build/bench/NAME.json. A ratio is taken in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench.arguments import positive, sizes
from bench.figures import faults, hot, idle, initiator, lookups, path, peers, trace
from bench.figures.options import Options
from bench.figures.record import Report, machine_facts
from bench.peers.install import InstallError
from bench.peers.stages import OPENERS
from bench.processes import ProcessError
from integration.client import ClientError

FIGURES: dict[str, tuple[Callable[[Options], Report], str]] = {
    "initiator": (initiator.measure, "the NVMe/TCP initiator alone by size and depth; beside SPDK's"),
    "path": (path.measure, "the whole path beside bare loopback TCP: PUT and GET by size and batch, CPU"),
    "peers": (peers.measure, "the same, and other caches side by side"),
    "hot": (hot.measure, "GETs that the gateway's read cache answers"),
    "lookups": (lookups.measure, "EXISTS and match_prefix of keys that the gateway knows and of others"),
    "trace": (trace.measure, "the conversation trace on four cards: wrong blocks, hit ratio, balance, speed"),
    "bounded": (trace.measure_bounded, "the same with room for 10,000 blocks in all, against an exact LRU"),
    "faults": (faults.measure, "GETs of healthy cards while one card hangs and one flaps"),
    "idle": (idle.measure, "CPU of the gateway's processes with four cards and a client that asks nothing"),
}
_PATHS = {"--peers": "DIR", "--spdk": "TREE", "--trace": "FILE", "--output": "DIR"}


def main() -> int:
    """Take the figure; 0 when it was taken, whether or not it is what is wanted."""
    options = _parser().parse_args()
    machine, began = machine_facts(), time.monotonic()
    measure, _ = FIGURES[options.figure]
    try:
        with tempfile.TemporaryDirectory(prefix="akv-bench-") as directory:
            report = measure(_options(options, Path(directory)))
    except (ProcessError, InstallError, ClientError, OSError, ValueError) as error:
        print(f"bench {options.figure}: {error}", file=sys.stderr)
        return 2
    machine["seconds"] = round(time.monotonic() - began)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    command = ["python", "-m", "bench.figures", *without_paths(sys.argv[1:])]
    options.output.mkdir(parents=True, exist_ok=True)
    written = options.output / f"{options.figure}.json"
    written.write_text(json.dumps(report.record(command, machine), indent=1) + "\n")
    console = Console(width=130)
    console.print(report.table())
    console.print(
        f"{machine['cores']} cores, {machine['cpu']}, load {machine['load_before']}; all values: {written}"
    )
    return 0


def without_paths(arguments: Sequence[str]) -> list[str]:
    """The arguments as they are told: where something lies on this machine is of no use on another."""
    told = list(arguments)
    for place, before in enumerate(arguments, start=1):
        if before in _PATHS and place < len(told):
            told[place] = _PATHS[before]
    return told


def _options(options: argparse.Namespace, directory: Path) -> Options:
    return Options(
        directory=directory,
        repeats=options.repeats or (1 if options.quick else 5),
        quick=options.quick,
        trace=options.trace,
        requests=options.requests,
        peers=options.peers,
        spdk=options.spdk,
        caches=options.caches,
        sizes=options.sizes,
        batches=options.batches,
    )


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:10} {what}" for name, (_, what) in FIGURES.items())
    parser = argparse.ArgumentParser(
        "bench.figures",
        description=__doc__,
        epilog=f"figures:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figure", choices=FIGURES, metavar="NAME")
    parser.add_argument("--repeats", type=positive, help="of everything (5, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a small trial: its values mean little")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), help="folder of the JSON (%(default)s)"
    )
    parser.add_argument("--trace", type=Path, help="default: the published trace beside the repository")
    parser.add_argument(
        "--requests", type=positive, help="rows of the trace (trace and bounded); default: all"
    )
    parser.add_argument(
        "--peers", type=Path, default=Path("build/peers"), help="where peers are (%(default)s)"
    )
    parser.add_argument("--spdk", type=Path, help="a built source tree of SPDK, to compare with (initiator)")
    parser.add_argument("--caches", type=_caches, help=f"of {', '.join(OPENERS)} (path and peers)")
    parser.add_argument("--sizes", type=sizes, help="of blocks, as in 256K,1M (initiator, path and peers)")
    parser.add_argument("--batches", type=sizes, help="blocks of a call, or depths, as in 1,32 (as --sizes)")
    return parser


def _caches(text: str) -> list[str]:
    unknown = set(text.split(",")) - OPENERS.keys()
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(OPENERS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
