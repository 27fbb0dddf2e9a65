"""What all exporters share: command-line options, GET /metrics over HTTP, and the end on a signal."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port, parse_port
from controlplane.base.credentials import CredentialFiles, CredentialsError
from controlplane.base.http_tls import HttpTls
from controlplane.base.logging import get_logger
from controlplane.base.version import program_version

Render = Callable[[], Awaitable[bytes]]
# Work beside the server; it ends by itself soon after `stop` is set.
Background = Callable[[asyncio.Event], Awaitable[None]]

InsecureOption = Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback --listen.")]
TlsOption = Annotated[
    Path | None,
    typer.Option("--tls-dir", help="Serve HTTPS, with the cluster's ca.pem, cert.pem and key.pem in DIR."),
]
# How often the files of --tls-dir are looked at.
TLS_LOOK_SECONDS = 2.0

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


def listen_address(text: str, default_port: int, insecure: bool, tls_dir: Path | None) -> HostPort:
    """The address of --listen: ADDR[:PORT], or ADDR,PORT with an IPv6 address that has no brackets, as in a
    settings file. Raises typer.BadParameter; other than loopback only with --tls-dir or --insecure.
    """
    address, comma, digits = text.partition(",")
    try:
        listen = parse_host_port(address, parse_port(digits, text) if comma else default_port)
    except AddressError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None
    if insecure and tls_dir is not None:
        raise typer.BadParameter("is no use with --tls-dir: drop one of them", param_hint="--insecure")
    if not insecure and tls_dir is None and not is_loopback(listen.host):
        raise typer.BadParameter(
            f"{listen.host} is not a loopback address and metrics are not encrypted: give --tls-dir, or add "
            "--insecure",
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


async def serve(listen: HostPort, render: Render, stop: asyncio.Event, tls_dir: Path | None = None) -> None:
    """Serve until `stop` is set; with `tls_dir` as soon as a certificate is there. OSError when the address
    can't be bound.
    """
    tls = HttpTls(CredentialFiles.in_directory(tls_dir), server=True) if tls_dir is not None else None
    context = await _first_context(tls, stop) if tls is not None else None
    if stop.is_set():
        return
    runner = web.AppRunner(application(render), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, listen.host, listen.port, ssl_context=context).start()
        port = runner.addresses[0][1]
        log.info("ready", listen=str(HostPort(listen.host, port)), port=port, tls=tls is not None)
        while not await _stopped(stop, TLS_LOOK_SECONDS):
            if tls is not None and context is not None:
                _renew(tls, context)
    finally:
        await runner.cleanup()


async def _first_context(tls: HttpTls, stop: asyncio.Event) -> ssl.SSLContext | None:
    """Wait for the host's certificate, which it gets when it joins a cluster; None when we are stopped."""
    said = ""
    while not stop.is_set():
        try:
            return tls.context()
        except CredentialsError as error:
            if str(error) != said:
                said = str(error)
                log.warning("no certificate yet", reason=said)
        await _stopped(stop, TLS_LOOK_SECONDS)
    return None


def _renew(tls: HttpTls, context: ssl.SSLContext) -> None:
    """Show new files to those who connect from now on. The server holds its context, so that is changed."""
    if not tls.changed():
        return
    try:
        tls.context()
        context.load_cert_chain(tls.files.certificate, tls.files.key)
        log.info("certificate taken", path=str(tls.files.certificate))
    except OSError as error:
        log.warning("certificate not taken", reason=str(error))


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Whether `stop` is set within that time."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


async def serve_until_signal(
    listen: HostPort, render: Render, background: Background, tls_dir: Path | None
) -> None:
    """Serve until SIGTERM or SIGINT, with `background` beside it. OSError as `serve`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = asyncio.create_task(_guarded(background, stop), name="background")
    try:
        await serve(listen, render, stop, tls_dir)
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
