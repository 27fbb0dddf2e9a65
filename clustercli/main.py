"""clustercli: the operator's command line of the card cluster.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no cluster service answered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from clustercli.call import DEFAULT_PORT, CallError
from clustercli.commands import cards, diagnosis, hosts, overview
from clustercli.session import Output, Session
from controlplane.base.addresses import AddressError, HostPort, parse_host_port
from controlplane.base.version import program_version

GLOBAL_OPTIONS = ("--host", "--output", "--timeout")
# In the order in which --help lists them.
SUBJECTS = (
    hosts,
    overview,
    cards,
    diagnosis,
)

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(program_version("clustercli"))
        raise typer.Exit


def _host_option(text: str) -> HostPort:
    try:
        return parse_host_port(text, DEFAULT_PORT)
    except AddressError as error:
        raise typer.BadParameter(str(error), param_hint="--host") from None


@app.callback()
def options(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Cluster host to ask, ADDR[:PORT].")] = "127.0.0.1:5000",
    output: Annotated[Output, typer.Option(help="Form of the answer.")] = Output.TABLE,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Deadline in seconds (10 to read, 120 to change).")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Read the global options."""
    context.obj = Session(_host_option(host), output, timeout)


for subject in SUBJECTS:
    subject.register(app)


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move the global options in front of the command, so that both orders are right.

    An option that lacks its value stands alone, so that nothing else is taken for it.
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in GLOBAL_OPTIONS:
            value = next(words, None)
            if value is None:
                return [word]
            front += [word, value]
        elif word.startswith(tuple(f"{option}=" for option in GLOBAL_OPTIONS)):
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def main() -> None:
    """Entry point of clustercli."""
    try:
        app(args=hoist(sys.argv[1:]), prog_name="clustercli")
    except CallError as error:
        typer.echo(f"clustercli: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
