"""`akv-bench`: replays traces against a gateway, simulates them, makes them; measures the initiator."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.arguments import positive
from bench.dialogs import request_of
from bench.generate import write_trace
from bench.initiator import InitiatorSettings, measure_initiator
from bench.lookups import measure_lookups
from bench.report import HitCount, readable
from bench.run import ReplaySettings, Run, arena_bytes
from bench.simulate import UnlimitedCards
from bench.statistics import measure
from bench.trace import BLOCK_TOKENS, TraceError, locate_trace, read_trace
from integration.client import ClientConfig, ClientError, connect
from integration.client.config import DEFAULT_SOCKET

EXIT_WRONG = 1
EXIT_FAILED = 3

_EPILOG = """\
exit codes:
  0  done
  1  a block was wrong
  2  the command line can't be used, or the command could not run
  3  the replay ran to its end, but calls failed, blocks were found and could not be read, or nothing
     was stored
"""

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; exits with the codes of `--help`."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        code = command(options)
    except (OSError, ValueError, TraceError, ClientError) as error:
        print(f"akv-bench: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _replay(options: argparse.Namespace) -> int:
    settings = ReplaySettings(
        trace=_trace(options),
        requests=options.requests,
        start=options.start,
        loop=options.loop,
        block_bytes=options.block_bytes,
        block_tokens=options.block_tokens,
        affinity_blocks=options.affinity_blocks,
        slots=options.slots,
        json_lines=options.json,
        rate=options.rate,
    )
    summary = Run(settings, _client_config(options)).execute()
    if not options.json:
        print(readable(summary))
    return _exit_code(summary, bounded=options.bounded)


def _exit_code(summary: dict[str, Any], *, bounded: bool) -> int:
    """The replay's exit code, with the reason on stderr where it is not 0."""
    if summary["wrong_blocks"]:
        print(f"akv-bench: {summary['wrong_blocks']} wrong blocks", file=sys.stderr)
        return EXIT_WRONG
    if summary["errors"]:
        print(
            f"akv-bench: {summary['errors']} calls failed: the gateway was away or too slow", file=sys.stderr
        )
        return EXIT_FAILED
    if summary["unread_blocks"]:
        print(
            f"akv-bench: {summary['unread_blocks']} blocks were found, but not read: a card failed to bring "
            "them, or made room for others meanwhile (--bounded)",
            file=sys.stderr,
        )
        if not bounded:
            return EXIT_FAILED
    if summary["put_blocks"] and not summary["put_ok_blocks"]:
        print(
            f"akv-bench: none of {summary['put_blocks']} blocks was stored: is any card in use (see the "
            "gateway's status file), and does a card take such block_bytes?",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return 0


def _simulate(options: argparse.Namespace) -> int:
    cards, hits = UnlimitedCards(options.slots), HitCount()
    rows = read_trace(
        _trace(options), start=options.start, limit=options.requests, block_tokens=options.block_tokens
    )
    for row in rows:
        request = request_of(row, options.block_tokens, options.affinity_blocks)
        matched = cards.serve(request)
        hits.add(len(request.keys), matched, matched)
    print(json.dumps(hits.record()))
    return 0


def _generate(options: argparse.Namespace) -> int:
    with options.output.open("w", encoding="utf-8") as out:
        write_trace(out, options.requests, options.seed)
    return 0


def _measure(options: argparse.Namespace) -> int:
    rows = read_trace(_trace(options), limit=options.requests, block_tokens=options.block_tokens)
    print(json.dumps(measure(rows), indent=2))
    return 0


def _locate(options: argparse.Namespace) -> int:
    found = locate_trace()
    if found is None and options.else_generate is not None:
        with options.else_generate.open("w", encoding="utf-8") as out:
            write_trace(out, options.requests, options.seed)
    path = found or options.else_generate
    if path is None:
        raise ValueError(
            "no shared/traces/conversation_trace.jsonl beside the repository; give --else-generate FILE"
        )
    print(json.dumps({"path": str(path), "generated": found is None}))
    return 0


def _stats(options: argparse.Namespace) -> int:
    with connect(wait=2.0, strict=True, **_connection(options), arena_bytes=0) as client:
        print(json.dumps(client.stats()))
    return 0


def _initiator(options: argparse.Namespace) -> int:
    settings = InitiatorSettings(
        target=options.target,
        nqn=options.nqn,
        ops=options.op,
        sizes=options.io_size,
        depths=options.qd,
        waiting=options.waiting,
        seconds=options.seconds,
        repeats=options.repeats,
        more=[*(["--digests"] if options.digests else []), "--max-inflight", options.max_inflight],
    )
    for record in measure_initiator(settings):
        print(json.dumps(record), flush=True)
    return 0


def _lookups(options: argparse.Namespace) -> int:
    arena = 1 << 20
    with connect(wait=5.0, strict=True, **_connection(options), arena_bytes=arena, timeout=30.0) as client:
        for record in measure_lookups(client, options.batch, options.calls, options.repeats):
            print(json.dumps(record), flush=True)
    return 0


def _trace(options: argparse.Namespace) -> Path:
    path: Path | None = options.trace or locate_trace()
    if path is None:
        raise ValueError("no trace: give --trace FILE, or make one with akv-bench generate-trace")
    return path


def _connection(options: argparse.Namespace) -> dict[str, Any]:
    secret = None if options.secret_file is None else _secret(options.secret_file)
    return {
        "socket": None if options.host is not None else options.socket,
        "host": options.host,
        "port": options.port,
        "namespace": options.namespace,
        "secret": secret,
    }


def _secret(path: Path) -> bytes:
    try:
        return bytes.fromhex(path.read_text())
    except ValueError:
        raise ValueError(
            f"{path} does not hold a secret: write the 64 hexadecimal digits of namespace_secrets"
        ) from None


def _client_config(options: argparse.Namespace) -> ClientConfig:
    size = arena_bytes(options.block_bytes)
    return ClientConfig(**_connection(options), arena_bytes=size, timeout=options.timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="akv-bench",
        description=__doc__.partition(":")[2].strip().capitalize(),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"akv-bench {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add, name, text in _COMMANDS:
        add(commands.add_parser(name, help=text))
    return parser


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_replay)
    _add_trace(parser)
    _add_connection(parser)
    parser.add_argument(
        "--block-bytes", type=positive, default=65536, help="bytes of one block (%(default)s)"
    )
    parser.add_argument(
        "--loop", action="store_true", help="replay the rows again and again until SIGINT or SIGTERM"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON line for each request, then one summary"
    )
    parser.add_argument(
        "--bounded",
        action="store_true",
        help="cards may drop blocks to make room: one that was found and then could not be read is told, "
        "and does not fail the replay",
    )
    parser.add_argument("--rate", type=_rate, help="requests a second at most; default: as fast as it goes")
    parser.add_argument(
        "--timeout", type=float, default=6.0, help="deadline of a call in seconds (%(default)s)"
    )


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_simulate)
    _add_trace(parser)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_generate)
    parser.add_argument("--requests", type=positive, required=True, help="number of rows")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same trace (%(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="file to write")


def _add_measure(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_measure)
    _add_trace(parser)


def _add_locate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_locate)
    parser.add_argument(
        "--else-generate", type=Path, metavar="FILE", help="where to make one when there is none"
    )
    parser.add_argument("--requests", type=positive, default=1000, help="rows to make (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)


def _add_lookups(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_lookups)
    _add_connection(parser)
    parser.add_argument("--batch", type=positive, default=4096, help="keys of a call (%(default)s)")
    parser.add_argument("--calls", type=positive, default=100, help="calls of a run (%(default)s)")
    parser.add_argument("--repeats", type=positive, default=5, help="interleaved; medians are told")


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_stats)
    _add_connection(parser)


def _add_initiator(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_initiator)
    parser.description = (
        "Measures every combination of --op, --io-size, --qd and --waiting (lists with commas); one JSON "
        "line each. The target may be a block or a KV subsystem. What its first 64 MiB held is overwritten."
    )
    parser.add_argument("--target", required=True, help="HOST:PORT, address literals only")
    parser.add_argument("--nqn", required=True, help="the subsystem's NQN")
    parser.add_argument("--op", type=_list_of(_op), default=["read", "write"], help="read, write or both")
    parser.add_argument("--io-size", type=_list_of(str), default=["64K"], help="bytes of a command, e.g. 64K")
    parser.add_argument("--qd", type=_list_of(positive), default=[1], help="commands outstanding")
    parser.add_argument(
        "--waiting",
        type=_list_of(_waiting),
        default=["sleep"],
        help="while nothing is there to do: sleep, adaptive, poll",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (%(default)s)")
    parser.add_argument("--repeats", type=positive, default=1, help="interleaved; medians are told")
    parser.add_argument("--digests", action="store_true", help="header and data digests")
    parser.add_argument(
        "--max-inflight", default="4M", help="payload on the wire at once; 0: the depth alone (%(default)s)"
    )


_COMMANDS: tuple[tuple[Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (_add_replay, "replay", "replay a trace: look up, GET and verify, PUT the rest"),
    (_add_simulate, "simulate", "the hit ratio of unlimited cards under the same routing"),
    (_add_generate, "generate-trace", "make a trace like the published conversation trace"),
    (_add_measure, "measure-trace", "sizes and reuse of a trace"),
    (_add_locate, "locate-trace", "where the published trace is; else make one"),
    (_add_initiator, "initiator", "the NVMe/TCP initiator alone, against any target"),
    (_add_lookups, "lookups", "EXISTS and match_prefix, of cached keys and of others"),
    (_add_stats, "stats", "the gateway's counters as JSON"),
)


def _op(text: str) -> str:
    if text not in ("read", "write"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither read nor write")
    return text


def _waiting(text: str) -> str:
    if text not in ("sleep", "adaptive", "poll"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of sleep, adaptive, poll")
    return text


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace", type=Path, help="JSON lines; default: the published trace beside the repository"
    )
    parser.add_argument("--requests", type=positive, default=None, help="rows to take; default: all")
    parser.add_argument("--start", type=_whole, default=0, help="first row, from 0")
    parser.add_argument(
        "--block-tokens", type=positive, default=BLOCK_TOKENS, help="tokens in a block (%(default)s)"
    )
    parser.add_argument(
        "--affinity-blocks", type=_whole, default=None, help="index of the block that names a dialog"
    )
    parser.add_argument(
        "--slots",
        type=_slots,
        default=(0,),
        help="routable slots for the expected ratio, e.g. 0,2,5 (one cache)",
    )


def _add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        default=os.environ.get("AKV_GATEWAY_SOCKET", DEFAULT_SOCKET),
        help="the gateway's Unix socket (%(default)s; AKV_GATEWAY_SOCKET in the environment names another)",
    )
    parser.add_argument("--host", help="IP address: speak TCP, with data inline, instead")
    parser.add_argument("--port", type=positive, default=5557, help="TCP port (%(default)s)")
    parser.add_argument("--namespace", default="default", help="key space (%(default)s)")
    parser.add_argument("--secret-file", type=Path, help="file with the namespace's secret in hex")


def _rate(text: str) -> float:
    value = float(text)
    if not 0.001 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.001 to 1000000 requests a second")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _slots(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of slots such as 0,2,5") from None


def _version() -> str:
    try:
        return version("akv")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
