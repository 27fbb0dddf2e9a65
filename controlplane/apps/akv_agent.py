"""`akv-agent`: the agent of a GPU or storage host."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from controlplane.agent.agent import Agent
from controlplane.agent.incarnation import AgentState, StateError
from controlplane.agent.settings import AgentConfig, load_agent_config
from controlplane.agent.shards.output import RotatingLog
from controlplane.base.config_errors import ConfigError
from controlplane.base.config_program import EXIT_CONFIG, parse_config_arguments
from controlplane.base.logging import configure_logging, get_logger

PROGRAM = "akv-agent"
DEFAULT_CONFIG = "/etc/akv/agent.yaml"
EXIT_STATE = 3
LOG_BYTES, LOG_FILES = 8 << 20, 4

_EPILOG = """\
exit codes:
  0  stopped by SIGTERM or SIGINT (shards go on), or the configuration is valid
  1  an unexpected error; it is in the log
  2  the command line or the configuration can't be used
  3  state_dir can't be used, or another akv-agent runs with it

AKV_AGENT_<KEY> in the environment wins over a key of the file. The keys are described in docs/agent.md.
"""


class Tee:
    """A stream for log lines: stderr, and the agent's own file, from which the cluster can read them."""

    def __init__(self, path: Path, stderr: TextIO) -> None:
        self._file = RotatingLog(path, LOG_BYTES, LOG_FILES)
        self._stderr = stderr

    def write(self, text: str) -> int:
        """Write to both."""
        self._file.write(text.encode("utf-8", "replace"))
        return self._stderr.write(text)

    def flush(self) -> None:
        """Flush stderr; the file needs none."""
        self._stderr.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; exits with the codes of `--help`."""
    asked = parse_config_arguments(
        PROGRAM,
        "Tells the cluster's leader what this node has, and runs what the leader asks for.",
        _EPILOG,
        arguments,
        default=DEFAULT_CONFIG,
        config_help=f"the configuration ({DEFAULT_CONFIG})",
        validate_help="check FILE (or that of --config) in full and start nothing",
    )
    try:
        config = load_agent_config(asked.path, os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    if asked.only_validate:
        print(f"{asked.path.name}: the configuration of node {config.node_id} is valid")
        sys.exit(0)
    sys.exit(_run(config))


def _run(config: AgentConfig) -> int:
    try:
        with AgentState(Path(config.state_dir)) as state:
            configure_logging(PROGRAM, stream=Tee(state.log, sys.stderr))  # type: ignore[arg-type]
            # Not uvloop: it forks with gRPC's fork handlers on, and such a child can crash before its exec.
            asyncio.run(_serve(config, state))
    except StateError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_STATE
    return 0


async def _serve(config: AgentConfig, state: AgentState) -> None:
    agent = Agent(config, state)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop.set)
    await agent.run()
    get_logger("agent").info("Stopped")


if __name__ == "__main__":
    main()
