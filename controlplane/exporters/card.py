"""akv-card-exporter: the state of each card's storage service as Prometheus metrics on :7891.

The card CLI is asked at most once per `max_age` however many scrapes come, each call with a deadline.
When it fails the status metrics are absent (what can't be read is unknown, never 0) and the failure
itself is a metric.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from controlplane.base.addresses import AddressError, HostPort, is_loopback, parse_host_port
from controlplane.base.card_cli import CardCli, CardCliError, ListedCard
from controlplane.base.logging import configure_logging, get_logger
from controlplane.base.version import program_version

DEFAULT_PORT = 7891

log = get_logger("card-exporter")


@dataclass(frozen=True, slots=True)
class Reading:
    """The last outcome of the card CLI: its cards, or the error."""

    cards: tuple[ListedCard, ...]
    error: str
    at: float


class CardReader:
    """Shares one call of the card CLI among all scrapes of `max_age` seconds."""

    def __init__(self, cli: CardCli, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cli = cli
        self._max_age = max_age
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: Reading | None = None
        self.failures = 0

    async def read(self) -> Reading:
        """Return a reading at most `max_age` old; waits for a running call instead of starting another."""
        async with self._lock:
            if self._last is None or self._clock() - self._last.at >= self._max_age:
                self._last = await self._ask(self._last)
            return self._last

    async def _ask(self, before: Reading | None) -> Reading:
        try:
            cards, error = await self._cli.list_cards(), ""
        except CardCliError as failure:
            cards, error = (), str(failure)
            self.failures += 1
        if error != (before.error if before is not None else ""):
            if error:
                log.warning("card CLI failed", reason=error)
            else:
                log.info("card CLI answers again")
        return Reading(cards, error, self._clock())


class CardCollector:
    """Turns one reading into metric families."""

    def __init__(self) -> None:
        self.reading = Reading((), "not asked yet", 0.0)
        self.failures = 0

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the present reading."""
        labels = ("xdp", "serial")
        status = GaugeMetricFamily(
            "xdp_service_status", "1 while the card's storage service runs, else 0", labels=labels
        )
        for card in self.reading.cards:
            status.add_metric((card.device, card.serial), float(card.state == "running"))
        yield status
        yield GaugeMetricFamily(
            "card_cli_up",
            "1 when the last call of the card CLI gave a usable list",
            float(not self.reading.error),
        )
        yield CounterMetricFamily("card_cli_failures", "Calls of the card CLI that gave none", self.failures)


class CardExporter:
    """The HTTP side: GET /metrics."""

    def __init__(self, reader: CardReader) -> None:
        self._reader = reader
        self._collector = CardCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._metrics)
        return application

    async def _metrics(self, _request: web.Request) -> web.Response:
        self._collector.reading = await self._reader.read()
        self._collector.failures = self._reader.failures
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


async def serve(listen: HostPort, reader: CardReader, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. OSError when the address can't be bound."""
    runner = web.AppRunner(CardExporter(reader).application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, listen.host, listen.port).start()
        port = runner.addresses[0][1]
        log.info("ready", listen=str(HostPort(listen.host, port)), port=port)
        await stop.wait()
    finally:
        await runner.cleanup()


async def _run(listen: HostPort, reader: CardReader) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(listen, reader, stop)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(program_version("akv-card-exporter"))
        raise typer.Exit


def _listen(text: str, insecure: bool) -> HostPort:
    try:
        listen = parse_host_port(text, DEFAULT_PORT)
    except AddressError as error:
        raise typer.BadParameter(str(error), param_hint="--listen") from None
    if not insecure and not is_loopback(listen.host):
        raise typer.BadParameter(
            f"{listen.host} is not a loopback address and metrics are not encrypted: add --insecure",
            param_hint="--listen",
        )
    return listen


def _command_words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a command line ({error}): balance its quotes", param_hint="--card-cli"
        ) from None
    if not words or not words[0]:
        raise typer.BadParameter("is empty: give the command that lists the cards", param_hint="--card-cli")
    return words


def command(
    listen: Annotated[str, typer.Option(help="Address to serve on, ADDR[:PORT].")] = "127.0.0.1:7891",
    card_cli: Annotated[str, typer.Option(help="Command that lists the cards.")] = "akv-softcard list --json",
    timeout: Annotated[float, typer.Option(help="Deadline of one card CLI call, seconds.", min=0.1)] = 5.0,
    max_age: Annotated[float, typer.Option(help="Scrapes share an answer this old, seconds.", min=0)] = 1.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow a non-loopback --listen.")] = False,
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Serve the state of this host's cards to Prometheus."""
    words = _command_words(card_cli)
    configure_logging("akv-card-exporter")
    address = _listen(listen, insecure)
    try:
        uvloop.run(_run(address, CardReader(CardCli(words, timeout), max_age)))
    except OSError as error:
        raise typer.BadParameter(f"{address} can't be served: {error}", param_hint="--listen") from None


def main() -> None:
    """Entry point of akv-card-exporter."""
    typer.run(command)


if __name__ == "__main__":
    main()
