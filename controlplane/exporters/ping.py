"""akv-ping-exporter: packet loss from this host to the other hosts' data addresses, on :9427.

Whom to ping stands in a file that the cluster service writes and that is read again when it changes. A host
that can't send ICMP reports that, and no loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from controlplane.base.addresses import AddressError, canonical_address
from controlplane.base.logging import configure_logging
from controlplane.exporters.pinger import IcmpProbe, Pinger, PingOptions, TargetsFile
from controlplane.exporters.serving import (
    InsecureOption,
    TlsOption,
    listen_address,
    run_exporter,
    serve_until_signal,
    version_option,
)

PROGRAM = "akv-ping-exporter"
DEFAULT_PORT = 9427
DEFAULT_TARGETS = Path("/srv/docker/awide/monitoring/ping-targets.json")
_LABELS = ("source", "destination", "address")


class PingCollector:
    """Turns the windows of a pinger into metric families."""

    def __init__(self, pinger: Pinger) -> None:
        self._pinger = pinger

    def collect(self) -> Iterator[Metric]:
        """Yield the families as of now; a destination with too few probes has no loss yet."""
        loss = GaugeMetricFamily("ping_loss_percent", "Lost probes of the window, percent", labels=_LABELS)
        trip = GaugeMetricFamily(
            "ping_round_trip_seconds", "Mean round trip of the window, seconds", labels=_LABELS
        )
        sent = CounterMetricFamily("ping_sent", "Echo requests sent", labels=_LABELS)
        received = CounterMetricFamily("ping_received", "Echo replies received in time", labels=_LABELS)
        now, targets = self._pinger.clock(), self._pinger.file.targets
        for target, window in self._pinger.windows.items():
            labels = (targets.source if targets is not None else "", target.host, target.address)
            percent, seconds = window.loss_percent(now), window.round_trip(now)
            if percent is not None:
                loss.add_metric(labels, percent)
            if seconds is not None:
                trip.add_metric(labels, seconds)
            sent.add_metric(labels, window.sent)
            received.add_metric(labels, window.received)
        yield from (loss, trip, sent, received)
        yield GaugeMetricFamily(
            "ping_socket_up", "1 when the last round could send, else 0", float(not self._pinger.error)
        )
        yield GaugeMetricFamily(
            "ping_targets_up", "1 when the targets file is usable, else 0", float(not self._pinger.file.error)
        )


def _source(text: str) -> str:
    try:
        return canonical_address(text) if text else ""
    except AddressError as error:
        raise typer.BadParameter(str(error), param_hint="--source") from None


def command(
    listen: Annotated[str, typer.Option(help="Address to serve on, ADDR[:PORT].")] = "127.0.0.1:9427",
    targets: Annotated[Path, typer.Option(help="File that says whom to ping.")] = DEFAULT_TARGETS,
    source: Annotated[str, typer.Option(help="Address to ping from; default: by the routes.")] = "",
    interval: Annotated[
        float, typer.Option(help="Seconds between pings, and to a loss.", min=0.05, max=60)
    ] = 1.0,
    window: Annotated[float, typer.Option(help="Loss is of this many seconds.", min=0.5, max=600)] = 20.0,
    tls_dir: TlsOption = None,
    insecure: InsecureOption = False,
    _version: Annotated[bool, version_option(PROGRAM)] = False,
) -> None:
    """Serve the packet loss to the other hosts to Prometheus."""
    address = listen_address(listen, DEFAULT_PORT, insecure, tls_dir)
    options = PingOptions(interval, interval, window)
    if window < options.minimum * interval:
        raise typer.BadParameter(
            f"{window:g} s hold fewer than {options.minimum} pings at --interval {interval:g}",
            param_hint="--window",
        )
    configure_logging(PROGRAM)
    pinger = Pinger(TargetsFile(targets), IcmpProbe(_source(source)), options)
    registry = CollectorRegistry()
    registry.register(PingCollector(pinger))

    async def render() -> bytes:
        return generate_latest(registry)

    run_exporter(address, lambda: uvloop.run(serve_until_signal(address, render, pinger.run, tls_dir)))


def main() -> None:
    """Entry point of akv-ping-exporter."""
    typer.run(command)


if __name__ == "__main__":
    main()
