"""awide-cluster: the cluster service of a storage or witness host.

Exit codes: 0 stopped on request, 1 failed while running, 2 settings or state that can't be used.
"""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import grpc
import typer

from controlplane.base.credentials import CredentialsError
from controlplane.base.logging import configure_logging
from controlplane.base.request_errors import RequestError, Unavailable
from controlplane.base.version import program_version
from controlplane.cluster.envfile import SettingsError
from controlplane.cluster.membership_file import MembershipFileError
from controlplane.cluster.service import ClusterService
from controlplane.cluster.settings import ClusterSettings, load_settings
from controlplane.cluster.single import AlreadyRunsError, only_service
from controlplane.cluster.trust import Trust
from controlplane.fleet.fleet import Fleet
from controlplane.fleet.liveness import Limits

PROGRAM = "awide-cluster"
FAILED, UNUSABLE = 1, 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(program_version(PROGRAM))
        raise typer.Exit


def _channel(trust: Trust, target: str) -> grpc.aio.Channel:
    """A channel for the fleet, whose callers know its own refusals only."""
    try:
        return trust.channel(target)
    except RequestError as error:
        raise Unavailable(str(error)) from error


async def _serve(settings: ClusterSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    trust = Trust(settings)
    fleet = Fleet(
        settings.host,
        require_identity=trust.secure,
        channel=partial(_channel, trust),
        limits=Limits(write=settings.agent_write_seconds),
    )
    await ClusterService(settings, trust, companions=[fleet]).run(stop)


@app.command(help=__doc__)
def run(
    config_dir: Annotated[
        Path, typer.Option(help="Directory of awide-cluster.env and adpcli_compat.env.")
    ] = Path("/etc/adp/awide-cluster"),
    validate_config: Annotated[
        bool, typer.Option("--validate-config", help="Check the settings and exit.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run the service, or check its settings."""
    try:
        settings = load_settings(config_dir, os.environ)
    except SettingsError as error:
        _refuse(str(error), UNUSABLE)
    if validate_config:
        typer.echo(f"{PROGRAM}: the settings of host {settings.host} are valid")
        return
    configure_logging(PROGRAM)
    try:
        # Not uvloop: it forks children with gRPC's fork handlers on, and such a child can crash before its
        # exec (seen: SIGSEGV). asyncio starts children by vfork, which runs no handlers.
        with only_service(settings.state_dir):
            asyncio.run(_serve(settings))
    except (MembershipFileError, CredentialsError) as error:
        _refuse(str(error), UNUSABLE)
    except AlreadyRunsError as error:
        _refuse(str(error), FAILED)
    except OSError as error:
        _refuse(f"{error}: {_remedy(error)}", FAILED)


def _remedy(error: OSError) -> str:
    """What to do about an address, or a file, that can't be had."""
    if error.filename is not None:
        return "let the user of this service write there, or correct the setting that names it"
    return "free the address, or change AWC_ADDRESS, AWC_API_PORT or AWC_ENROLL_PORT"


def _refuse(sentence: str, code: int) -> NoReturn:
    typer.echo(f"{PROGRAM}: {sentence}", err=True)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of awide-cluster."""
    app(prog_name=PROGRAM)


if __name__ == "__main__":
    main()
