"""What all exporters share: command-line options, GET /metrics over HTTP, and the end on a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port
from controlplane.base.logging import get_logger
from controlplane.base.version import program_version

Render = Callable[[], Awaitable[bytes]]
# Work beside the server; it ends by itself soon after `stop` is set.
Background = Callable[[asyncio.Event], Awaitable[None]]

InsecureOption = Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback --listen.")]

log = get_logger("exporter")


def version_option(program: str) -> typer.models.OptionInfo:
    """The `--version` option of a program."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(program_version(program))
            raise typer.Exit

    option: typer.models.OptionInfo = typer.Option(
        "--version", callback=show, is_eager=True, help="Show the version."
    )
    return option


def listen_address(text: str, default_port: int, insecure: bool) -> HostPort:
    """The address of --listen. Raises typer.BadParameter; other than loopback only with --insecure."""
    try:
        listen = parse_host_port(text, default_port)
    except AddressError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None
    if not insecure and not is_loopback(listen.host):
        raise typer.BadParameter(
            f"{listen.host} is not a loopback address and metrics are not encrypted: add --insecure",
            param_hint="--listen",
        )
    return listen


def application(render: Render) -> web.Application:
    """An aiohttp application that serves what `render` returns, in Prometheus' text format."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    served = web.Application(client_max_size=1024)
    served.router.add_get("/metrics", metrics)
    return served


async def serve(listen: HostPort, render: Render, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. OSError when the address can't be bound."""
    runner = web.AppRunner(application(render), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, listen.host, listen.port).start()
        port = runner.addresses[0][1]
        log.info("ready", listen=str(HostPort(listen.host, port)), port=port)
        await stop.wait()
    finally:
        await runner.cleanup()


async def serve_until_signal(listen: HostPort, render: Render, background: Background) -> None:
    """Serve until SIGTERM or SIGINT, with `background` beside it. OSError as `serve`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = asyncio.create_task(_guarded(background, stop), name="background")
    try:
        await serve(listen, render, stop)
    finally:
        stop.set()
        await work


async def _guarded(background: Background, stop: asyncio.Event) -> None:
    """An exporter whose work has ended must not go on serving what it measured last."""
    try:
        await background(stop)
    finally:
        stop.set()


async def no_background(stop: asyncio.Event) -> None:
    """For an exporter that measures only when it is asked."""
    await stop.wait()


def run_exporter(listen: HostPort, run: Callable[[], None]) -> None:
    """Call `run`; an address that can't be served is a clear refusal."""
    try:
        run()
    except OSError as error:
        raise typer.BadParameter(f"{listen} can't be served: {error}", param_hint="--listen") from None
