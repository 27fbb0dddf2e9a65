"""Where the leader gets its card metrics from: an interface, and the exporters themselves behind it.

Prometheus can come in between behind the same interface.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Protocol

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from controlplane.cluster.verdicts import HostSample

METRIC = "xdp_service_status"
MAX_BYTES = 1 << 20


class MetricSource(Protocol):
    """Reads the card metrics of many hosts at once."""

    async def read(self, exporters: Mapping[str, str]) -> dict[str, HostSample]:
        """Return one sample for each host; `exporters` maps host to HOST:PORT. Never raises for one host."""

    async def close(self) -> None:
        """Give back what the source holds."""


class ExporterSource:
    """Asks every host's card exporter over HTTP, all at once, each within `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def read(self, exporters: Mapping[str, str]) -> dict[str, HostSample]:
        """Return one sample for each host; an exporter that is away is a sample with an error."""
        samples = await asyncio.gather(*(self._ask(endpoint) for endpoint in exporters.values()))
        return dict(zip(exporters, samples, strict=True))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, endpoint: str) -> HostSample:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        try:
            async with self._session.get(f"http://{endpoint}/metrics", allow_redirects=False) as answer:
                if answer.status != 200:
                    return HostSample({}, f"its exporter answered HTTP {answer.status}")
                body = await _read_bounded(answer.content)
        except TimeoutError:
            return HostSample({}, f"its exporter gave no answer within {self._timeout:g} s")
        except (aiohttp.ClientError, ValueError, OSError):
            return HostSample({}, "its exporter does not answer")
        return parse_sample(body)


async def _read_bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
    return bytes(body)


def parse_sample(body: bytes) -> HostSample:
    """Read the card metric out of an exposition. Serials with two different values are left out: unknown."""
    status: dict[str, float] = {}
    doubtful: set[str] = set()
    try:
        for family in text_string_to_metric_families(body.decode("utf-8")):
            if family.name != METRIC:
                continue
            for sample in family.samples:
                serial, value = sample.labels.get("serial", ""), float(sample.value)
                if math.isnan(value) or status.get(serial, value) != value:
                    doubtful.add(serial)
                status[serial] = value
    except (ValueError, KeyError, IndexError):
        return HostSample({}, "its exporter's answer can't be read")
    return HostSample({serial: value for serial, value in status.items() if serial not in doubtful})
