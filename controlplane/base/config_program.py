"""The command line of programs with one configuration file: `--config FILE`, `--validate-config [FILE]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.base.version import program_version

EXIT_CONFIG = 2

GATEWAY_CONFIG_HELP = "the configuration (gateway.yaml)"
GATEWAY_VALIDATE_HELP = (
    "check FILE (or that of --config) in full, also against this machine, and start nothing"
)
GATEWAY_EPILOG_END = """
Every problem of the configuration is one line on stderr: file, key, value, and what to do.
The keys are described in docs/gateway.md.
"""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What was asked for. `path` is the configuration."""

    path: Path
    only_validate: bool


def parse_config_arguments(
    program: str,
    description: str,
    epilog: str,
    arguments: Sequence[str] | None = None,
    *,
    default: str | None = None,
    config_help: str = GATEWAY_CONFIG_HELP,
    validate_help: str = GATEWAY_VALIDATE_HELP,
) -> Invocation:
    """Read the command line; exits with 0 after --help and --version, and with 2 on a bad one.

    Without a `default` configuration, one has to be named.
    """
    parser = argparse.ArgumentParser(
        program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", default=default, help=config_help)
    parser.add_argument("--validate-config", metavar="FILE", nargs="?", const="", help=validate_help)
    parser.add_argument("--version", action="version", version=program_version(program))
    options = parser.parse_args(arguments)
    if options.config is None and not options.validate_config:
        parser.error("which configuration? add --config FILE")
    return Invocation(Path(options.validate_config or options.config), options.validate_config is not None)
