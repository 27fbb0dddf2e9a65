"""akv-witness-exporter: says on :7891 that a host without cards is there and watched.

It stands where other hosts have the card exporter, and serves no card metric: a witness has no cards, and
says nothing about anyone else's.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Annotated

import typer
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from controlplane.base.logging import configure_logging
from controlplane.base.version import program_version
from controlplane.exporters.serving import (
    InsecureOption,
    TlsOption,
    listen_address,
    no_background,
    run_exporter,
    serve_until_signal,
    version_option,
)

PROGRAM = "akv-witness-exporter"
DEFAULT_PORT = 7891


class WitnessCollector:
    """The families of one witness host. `started` is Unix seconds."""

    def __init__(self, name: str, started: float) -> None:
        self._name = name
        self._started = started

    def collect(self) -> Iterator[Metric]:
        """Yield who the witness is and since when it is watched."""
        version = program_version(PROGRAM).removeprefix(PROGRAM).strip()
        yield InfoMetricFamily(
            "witness", "A cluster host without cards", {"witness": self._name, "version": version}
        )
        yield GaugeMetricFamily(
            "witness_start_time_seconds", "When the witness exporter started, Unix seconds", self._started
        )


def command(
    listen: Annotated[str, typer.Option(help="Address to serve on, ADDR[:PORT].")] = "127.0.0.1:7891",
    name: Annotated[str, typer.Option(help="Name of this host; default: the machine's.")] = "",
    tls_dir: TlsOption = None,
    insecure: InsecureOption = False,
    _version: Annotated[bool, version_option(PROGRAM)] = False,
) -> None:
    """Serve a witness host's presence to Prometheus."""
    address = listen_address(listen, DEFAULT_PORT, insecure, tls_dir)
    configure_logging(PROGRAM)
    registry = CollectorRegistry()
    registry.register(WitnessCollector(name or socket.gethostname(), time.time()))

    async def render() -> bytes:
        return generate_latest(registry)

    run_exporter(address, lambda: uvloop.run(serve_until_signal(address, render, no_background, tls_dir)))


def main() -> None:
    """Entry point of akv-witness-exporter."""
    typer.run(command)


if __name__ == "__main__":
    main()
