"""Where the leader gets its metrics from: an interface, and the exporters themselves behind it.

Prometheus is the other source (prometheus_source).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from controlplane.base.addresses import AddressError, canonical_address
from controlplane.base.http_tls import HttpTls
from controlplane.cluster.evidence import Evidence, HostEndpoints, HostSample, PathLoss
from controlplane.cluster.http_reader import HttpProblem, HttpReader

STATUS_METRIC = "xdp_service_status"
LOSS_METRIC = "ping_loss_percent"
MAX_BYTES = 1 << 20


class MetricSource(Protocol):
    """Reads the metrics of many hosts at once."""

    async def read(self, hosts: Mapping[str, HostEndpoints]) -> Evidence:
        """Return what the exporters of these hosts say. Never raises for one host, or for the source."""

    async def close(self) -> None:
        """Give back what the source holds."""


class ExporterSource:
    """Asks every host's exporters over HTTP, all at once, each within `timeout` seconds; `tls` is for those
    that serve HTTPS.
    """

    def __init__(self, timeout: float, tls: HttpTls | None = None) -> None:
        self._reader = HttpReader(timeout, MAX_BYTES, tls)

    async def read(self, hosts: Mapping[str, HostEndpoints]) -> Evidence:
        """Return one sample for each host with a card exporter; one that is away is an error."""
        with_cards = {host: _url(ends, ends.cards) for host, ends in hosts.items() if ends.cards}
        pinging = {host: _url(ends, ends.ping) for host, ends in hosts.items() if ends.ping}
        samples, losses = await asyncio.gather(
            asyncio.gather(*(self._ask_cards(url) for url in with_cards.values())),
            asyncio.gather(*(self._ask_ping(*item) for item in pinging.items())),
        )
        loss = tuple(sorted(path for paths in losses for path in paths))
        return Evidence(dict(zip(with_cards, samples, strict=True)), loss)

    async def close(self) -> None:
        """Close the connections."""
        await self._reader.close()

    async def _ask_cards(self, url: str) -> HostSample:
        try:
            return parse_sample(await self._reader.get(url))
        except HttpProblem as problem:
            return HostSample({}, f"its exporter {problem}")

    async def _ask_ping(self, host: str, url: str) -> tuple[PathLoss, ...]:
        """Loss that `host` sees; nothing when its exporter is away, since that is unknown."""
        try:
            return parse_loss(host, await self._reader.get(url))
        except HttpProblem:
            return ()


def _url(ends: HostEndpoints, endpoint: str) -> str:
    return f"{'https' if ends.tls else 'http'}://{endpoint}/metrics"


def parse_sample(body: bytes) -> HostSample:
    """Read the card metric out of an exposition. Serials with two different values are left out: unknown."""
    try:
        samples = _samples(body, STATUS_METRIC)
        return HostSample(agreed_status((s.labels.get("serial", ""), s.value) for s in samples))
    except (ValueError, KeyError, IndexError):
        return HostSample({}, "its exporter's answer can't be read")


def parse_loss(host: str, body: bytes) -> tuple[PathLoss, ...]:
    """Read the loss metric out of the exposition of `host`; one that can't be read says nothing."""
    try:
        found = [path_loss(host, s.labels, s.value) for s in _samples(body, LOSS_METRIC)]
    except (ValueError, KeyError, IndexError):
        return ()
    return tuple(path for path in found if path is not None)


def agreed_status(values: Iterator[tuple[str, float]]) -> dict[str, float]:
    """Status by serial, without the serials that have two values or none that is a number."""
    status: dict[str, float] = {}
    doubtful: set[str] = set()
    for serial, value in values:
        if math.isnan(value) or status.get(serial, value) != value:
            doubtful.add(serial)
        status[serial] = value
    return {serial: value for serial, value in status.items() if serial not in doubtful}


def path_loss(host: str, labels: Mapping[str, str], value: float) -> PathLoss | None:
    """One sample of ping_loss_percent that `host` served; None when it makes no sense.

    An exporter that says it is another host runs with another host's targets file.
    """
    if labels.get("source") != host or not labels.get("destination") or not 0 <= value <= 100:
        return None
    try:
        return PathLoss(host, labels["destination"], canonical_address(labels.get("address", "")), value)
    except AddressError:
        return None


def _samples(body: bytes, metric: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(body.decode("utf-8")):
        if family.name == metric:
            yield from family.samples
