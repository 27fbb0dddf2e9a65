"""akv-card-exporter: the state of each card's storage service as Prometheus metrics on :7891.

The card CLI is asked at most once per `max_age` however many scrapes come, each call with a deadline.
When it fails the status metrics are absent (what can't be read is unknown, never 0) and the failure
itself is a metric.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from controlplane.base.card_cli import CardCli, CardCliError, ListedCard
from controlplane.base.logging import configure_logging, get_logger
from controlplane.exporters.serving import (
    InsecureOption,
    TlsOption,
    listen_address,
    no_background,
    run_exporter,
    serve_until_signal,
    version_option,
)

PROGRAM = "akv-card-exporter"
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
    """Renders one reading for each scrape."""

    def __init__(self, reader: CardReader) -> None:
        self._reader = reader
        self._collector = CardCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)

    async def render(self) -> bytes:
        """Return the exposition of a reading that is fresh enough."""
        self._collector.reading = await self._reader.read()
        self._collector.failures = self._reader.failures
        return generate_latest(self._registry)


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
    timeout: Annotated[
        float,
        typer.Option(help="Deadline of one card CLI call, seconds.", min=0.1, max=600),
    ] = 5.0,
    max_age: Annotated[
        float,
        typer.Option(help="Scrapes share an answer this old, seconds.", min=0, max=600),
    ] = 1.0,
    tls_dir: TlsOption = None,
    insecure: InsecureOption = False,
    _version: Annotated[bool, version_option(PROGRAM)] = False,
) -> None:
    """Serve the state of this host's cards to Prometheus."""
    words = _command_words(card_cli)
    configure_logging(PROGRAM)
    address = listen_address(listen, DEFAULT_PORT, insecure, tls_dir)
    exporter = CardExporter(CardReader(CardCli(words, timeout), max_age))
    run_exporter(
        address, lambda: uvloop.run(serve_until_signal(address, exporter.render, no_background, tls_dir))
    )


def main() -> None:
    """Entry point of akv-card-exporter."""
    typer.run(command)


if __name__ == "__main__":
    main()
