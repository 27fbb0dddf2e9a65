"""clustercli: the operator's command line of the card cluster.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no cluster service answered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from clustercli.call import USAGE, CallError
from clustercli.commands import (
    cards,
    diagnosis,
    fabric,
    fleet,
    fleet_engines,
    fleet_models,
    fleet_nodes,
    hosts,
    overview,
    pki,
)
from clustercli.printable import printable
from clustercli.session import Output, Session
from clustercli.target import TargetError, read_target
from controlplane.base.version import program_version

GLOBAL_OPTIONS = ("--host", "--output", "--timeout", "--ca", "--cert", "--key")
# In the order in which --help lists them.
SUBJECTS = (
    hosts,
    overview,
    cards,
    diagnosis,
    pki,
    fleet,
    fleet_engines,
    fleet_models,
    fleet_nodes,
    fabric,
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


@app.callback()
def options(
    context: typer.Context,
    host: Annotated[
        str | None,
        typer.Option(
            envvar="CLUSTERCLI_HOST",
            help="Cluster host to ask, ADDR[:PORT] or unix:PATH; this one unless given.",
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(envvar="CLUSTERCLI_CA", help="The cluster's CA (AWC_SECURITY=mtls).")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(envvar="CLUSTERCLI_CERT", help="Your certificate of the role admin.")
    ] = None,
    key: Annotated[Path | None, typer.Option(envvar="CLUSTERCLI_KEY", help="Its key, of mode 0600.")] = None,
    output: Annotated[Output, typer.Option(help="Form of the answer.")] = Output.TABLE,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, max=86400, help="Deadline in seconds (10 to read, 120 to change)."),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Read the global options."""
    try:
        target = read_target(host, ca, cert, key)
    except TargetError as error:
        raise typer.BadParameter(str(error)) from None
    context.obj = Session(target, output, timeout)


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


def refuse_unreadable(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Bytes that are no UTF-8 can't be sent to a host. Raises CallError."""
    ours = {name: value for name, value in environment.items() if name.startswith("CLUSTERCLI_")}
    for where, word in [*(("the argument", word) for word in arguments), *ours.items()]:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise CallError(f"{where} is not UTF-8 text: correct {word[:80]!a}", USAGE) from None


def main() -> None:
    """Entry point of clustercli."""
    try:
        refuse_unreadable(sys.argv[1:], os.environ)
        app(args=hoist(sys.argv[1:]), prog_name="clustercli")
    except CallError as error:
        typer.echo(printable(f"clustercli: {error}"), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
