"""`akv`: the one-machine demo, and a cluster with one pod to try things on."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from controlplane.apps.demo.errors import DemoError
from controlplane.apps.demo.pod import run_in_pod
from controlplane.apps.demo.report import check_report_place, print_report, write_report
from controlplane.apps.demo.settings import LEAST_REQUESTS, DemoSettings
from controlplane.apps.demo.story import tell
from controlplane.base.version import program_version

PROGRAM = "akv"
EXIT_BROKEN, EXIT_UNABLE, EXIT_INTERRUPTED = 1, 2, 130
# Of each card that `akv pod` starts, unless told otherwise; the card's file grows as it is used.
_POD_CARD_BYTES = 2 << 30

_EPILOG = """\
exit codes of `akv demo`:
  0    seven promises were kept and no block was wrong
  1    a promise was broken; the table and the report say which
  2    the demo could not run
  130  stopped by a signal; every process that it had started was ended
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; exits with the codes of `--help`."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = command(options)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped; every process was ended", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except (DemoError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        code = EXIT_UNABLE
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _demo(options: argparse.Namespace) -> int:
    settings = DemoSettings(
        requests=options.requests,
        block_bytes=options.block_bytes,
        trace=options.trace.absolute() if options.trace else None,
        report=options.report.absolute() if options.report else None,
        keep=options.keep,
    )
    if settings.report is not None:
        check_report_place(settings.report)
    report = tell(settings, _progress())
    print_report(report)
    if settings.report is not None:
        write_report(report, settings.report)
    return 0 if report.good else EXIT_BROKEN


def _progress() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda line: print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)


def _pod(options: argparse.Namespace) -> int:
    settings = DemoSettings(keep=options.keep)
    return run_in_pod(options.program, settings, options.card_bytes, _progress())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(PROGRAM, description="The card cluster on one machine.")
    parser.add_argument("--version", action="version", version=program_version(PROGRAM))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="replay a conversation trace through cards that come and go",
        description="Starts three storage hosts, software cards and a gateway on loopback addresses of this "
        "machine, replays a conversation trace, and measures seven promises while cards, etcd members and "
        "processes come and go.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = DemoSettings()
    demo.set_defaults(command=_demo)
    demo.add_argument("--report", type=Path, metavar="FILE", help="write the results as JSON")
    demo.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="JSON lines; default: the published trace, else one made for the run",
    )
    demo.add_argument(
        "--requests",
        type=_requests,
        default=defaults.requests,
        metavar="N",
        help="rows of the trace (%(default)s)",
    )
    demo.add_argument(
        "--block-bytes", type=_block_bytes, default=defaults.block_bytes, metavar="B", help="(%(default)s)"
    )
    demo.add_argument("--keep", action="store_true", help="keep the directory with logs and files")
    _add_pod(commands)
    return parser


def _add_pod(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pod = commands.add_parser(
        "pod",
        help="a cluster with one gateway pod, while a program runs or until Ctrl-C",
        description="Starts three storage hosts with a software card each and a gateway, as the demo does, "
        "then runs PROGRAM with AKV_GATEWAY_SOCKET set (akv-bench reads it); its exit code is the program's.",
    )
    pod.set_defaults(command=_pod)
    pod.add_argument(
        "--card-bytes",
        type=_positive,
        default=_POD_CARD_BYTES,
        metavar="B",
        help="of each card (%(default)s)",
    )
    pod.add_argument("--keep", action="store_true", help="keep the directory with logs and files")
    pod.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="and its options")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _requests(text: str) -> int:
    value = _positive(text)
    if value < LEAST_REQUESTS:
        raise argparse.ArgumentTypeError(f"{text} is too few: the story needs at least {LEAST_REQUESTS}")
    return value


def _block_bytes(text: str) -> int:
    value = _positive(text)
    if not 64 <= value <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{text} is not between 64 and {1 << 20} bytes")
    return value


if __name__ == "__main__":
    main()
