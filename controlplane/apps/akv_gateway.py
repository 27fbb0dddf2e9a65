"""`akv-gateway`: the control process of a gateway pod."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from controlplane.base.config_program import EXIT_CONFIG, GATEWAY_EPILOG_END, parse_config_arguments
from controlplane.base.gateway_checks import CONTROL_CHECKS, check_machine
from controlplane.base.gateway_config import ConfigError, GatewayConfig, load_gateway_config
from controlplane.base.logging import configure_logging, get_logger
from controlplane.gateway.control import ControlProcess
from controlplane.gateway.state import StateDir, StateError
from controlplane.gateway.status_writer import MetricsAddressError

PROGRAM = "akv-gateway"
EXIT_STATE = 3

_DESCRIPTION = (
    "Keeps a gateway's dataplane on the cards of its cluster: reads the card set and its health from etcd, "
    "pushes slot plans, and writes the status file."
)
_EXIT_CODES = """\
exit codes:
  0  stopped by SIGTERM or SIGINT, or the configuration is valid
  1  an unexpected error; it is in the log
  2  the command line or the configuration can't be used
  3  state_dir can't be used, or another akv-gateway runs with it
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; exits with the codes of `--help`."""
    asked = parse_config_arguments(PROGRAM, _DESCRIPTION, _EXIT_CODES + GATEWAY_EPILOG_END, arguments)
    sys.exit(_validate(asked.path) if asked.only_validate else _run(asked.path))


def _validate(path: Path) -> int:
    """Check everything that either program of the pod would refuse."""
    try:
        config = load_gateway_config(path)
        _require(path, check_machine(config))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    print(f"{path.name}: the configuration is valid")
    return 0


def _run(path: Path) -> int:
    try:
        config = load_gateway_config(path)
        _require(path, check_machine(config, CONTROL_CHECKS))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    configure_logging(PROGRAM)
    try:
        with StateDir(Path(config.state_dir)) as state:
            uvloop.run(_serve(config, state))
    except StateError as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return EXIT_STATE
    except MetricsAddressError as error:
        print(f"{path.name}: metrics: {error}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


def _require(path: Path, problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError(path.name, problems)


async def _serve(config: GatewayConfig, state: StateDir) -> None:
    process = ControlProcess(config, state)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop.set)
    await process.run()
    get_logger("gateway").info("Stopped")


if __name__ == "__main__":
    main()
