"""`akv-dataplane`: the data path of a gateway pod."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from controlplane.base.config_program import EXIT_CONFIG, GATEWAY_EPILOG_END, parse_config_arguments
from controlplane.base.gateway_checks import ALL_CHECKS, DATAPLANE_CHECKS, Check, check_machine
from controlplane.base.gateway_config import ConfigError, GatewayConfig, load_gateway_config
from controlplane.base.logging import configure_logging
from dataplane._native import ListenError
from dataplane.places import PlaceError
from dataplane.process import make_engine, serve

PROGRAM = "akv-dataplane"

_DESCRIPTION = (
    "Moves KV blocks between the clients of one gateway pod and the cards: shared memory and sockets on one "
    "side, NVMe-oF on the other. akv-gateway tells it which cards there are."
)
_EXIT_CODES = """\
exit codes:
  0  stopped by SIGTERM or SIGINT, or the configuration is valid
  1  an unexpected error; it is in the log
  2  the command line or the configuration can't be used, or an address is taken
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; exits with the codes of `--help`."""
    asked = parse_config_arguments(PROGRAM, _DESCRIPTION, _EXIT_CODES + GATEWAY_EPILOG_END, arguments)
    try:
        config = _load(asked.path, ALL_CHECKS if asked.only_validate else DATAPLANE_CHECKS)
        if asked.only_validate:
            print(f"{asked.path.name}: the configuration is valid")
            return
        _run(config)
    except ConfigError as error:
        sys.exit(_refused(str(error)))
    except (PlaceError, ListenError) as error:
        sys.exit(_refused(f"{asked.path.name}: {error}"))


def _load(path: Path, checks: tuple[Check, ...]) -> GatewayConfig:
    config = load_gateway_config(path)
    problems = check_machine(config, checks)
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
