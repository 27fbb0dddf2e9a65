"""`akv-dataplane`: the data path of a gateway pod."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from controlplane.base.gateway_checks import DATAPLANE_CHECKS, check_machine
from controlplane.base.gateway_config import ConfigError, GatewayConfig, load_gateway_config
from controlplane.base.logging import configure_logging
from controlplane.base.version import program_version
from dataplane._native import ListenError
from dataplane.places import PlaceError
from dataplane.process import make_engine, serve

PROGRAM = "akv-dataplane"
EXIT_CONFIG = 2

_EPILOG = """\
exit codes:
  0  stopped by SIGTERM or SIGINT, or the configuration is valid
  1  an unexpected error; it is in the log
  2  the command line or the configuration can't be used, or an address is taken

Every problem of the configuration is one line on stderr: file, key, value, and what to do.
The keys are described in docs/gateway.md.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; exits with the codes of `--help`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    path = Path(options.validate_config or options.config or "")
    if options.config is None and not options.validate_config:
        parser.error("which configuration? add --config FILE")
    try:
        config = _load(path)
        if options.validate_config is not None:
            print(f"{path.name}: the configuration is valid")
            return
        _run(config)
    except ConfigError as error:
        sys.exit(_refused(str(error)))
    except (PlaceError, ListenError) as error:
        sys.exit(_refused(f"{path.name}: {error}"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="Moves KV blocks between the clients of one gateway pod and the cards: shared memory and "
        "sockets on one side, NVMe-oF on the other. akv-gateway tells it which cards there are.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration (gateway.yaml)")
    parser.add_argument(
        "--validate-config",
        metavar="FILE",
        nargs="?",
        const="",
        help="check FILE (or that of --config) in full, also against this machine, and start nothing",
    )
    parser.add_argument("--version", action="version", version=program_version(PROGRAM))
    return parser


def _load(path: Path) -> GatewayConfig:
    config = load_gateway_config(path)
    problems = check_machine(config, DATAPLANE_CHECKS)
    if problems:
        raise ConfigError(path.name, problems)
    return config


def _run(config: GatewayConfig) -> None:
    configure_logging(PROGRAM)
    engine = make_engine(config)
    try:
        uvloop.run(serve(config, engine))
    finally:
        Path(config.dataplane_socket).unlink(missing_ok=True)


def _refused(text: str) -> int:
    print(text, file=sys.stderr)
    return EXIT_CONFIG


if __name__ == "__main__":
    main()
