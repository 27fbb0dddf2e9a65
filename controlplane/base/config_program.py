"""The command line that both programs of a gateway pod have: `--config FILE`, `--validate-config [FILE]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.base.version import program_version

EXIT_CONFIG = 2

_EPILOG_END = """
Every problem of the configuration is one line on stderr: file, key, value, and what to do.
The keys are described in docs/gateway.md.
"""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What was asked for. `path` is the configuration."""

    path: Path
    only_validate: bool


def parse_gateway_arguments(
    program: str, description: str, exit_codes: str, arguments: Sequence[str] | None = None
) -> Invocation:
    """Read the command line; exits with 0 after --help and --version, and with 2 on a bad one."""
    parser = argparse.ArgumentParser(
        program,
        description=description,
        epilog=exit_codes + _EPILOG_END,
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
    parser.add_argument("--version", action="version", version=program_version(program))
    options = parser.parse_args(arguments)
    if options.config is None and not options.validate_config:
        parser.error("which configuration? add --config FILE")
    return Invocation(Path(options.validate_config or options.config), options.validate_config is not None)
