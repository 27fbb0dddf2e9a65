"""The leader's metrics through Prometheus' HTTP API.

Prometheus goes on showing a series' last value for minutes, so the query itself drops what is older than a
few scrapes. One query gives all metrics as of one moment. An answer that is not understood in whole, or that
Prometheus calls partial, is no answer: everything is unknown then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.cluster.evidence import Evidence, HostEndpoints, HostSample, nothing_known
from controlplane.cluster.http_reader import HttpProblem, HttpReader
from controlplane.cluster.metric_source import LOSS_METRIC, STATUS_METRIC, agreed_status, path_loss
from controlplane.cluster.prometheus_files import CARD_JOB, PING_JOB

MAX_BYTES = 8 << 20


class AnswerError(ValueError):
    """An answer of Prometheus that can't be used; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an instant vector: its name, its other labels, and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


class PrometheusSource:
    """Reads through the Prometheus at `url`. `timeout` and `max_age` are seconds."""

    def __init__(self, url: str, timeout: float, max_age: float) -> None:
        self._url = url
        self._query = query(max_age)
        self._timeout = timeout
        self._reader = HttpReader(timeout, MAX_BYTES)

    async def read(self, hosts: Mapping[str, HostEndpoints]) -> Evidence:
        """Return what Prometheus holds of these hosts that is fresh."""
        parameters = {"query": self._query, "timeout": f"{self._timeout:g}s"}
        try:
            body = await self._reader.get(f"{self._url}/api/v1/query", parameters)
            return evidence_of(parse_answer(body), hosts)
        except (HttpProblem, AnswerError) as problem:
            return nothing_known(hosts, f"Prometheus at {self._url} {problem}")

    async def close(self) -> None:
        """Close the connections."""
        await self._reader.close()


def query(max_age: float) -> str:
    """PromQL for all series that the leader reads whose last sample is at most `max_age` seconds old."""
    selectors = (
        f'up{{job=~"{CARD_JOB}|{PING_JOB}"}}',
        f'{STATUS_METRIC}{{job="{CARD_JOB}"}}',
        f'{LOSS_METRIC}{{job="{PING_JOB}"}}',
    )
    return " or ".join(f"({what} and (time() - timestamp({what}) <= {max_age:g}))" for what in selectors)


def parse_answer(body: bytes) -> tuple[Series, ...]:
    """The series of an answer to an instant query. Raises AnswerError unless all of it is right."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise AnswerError("gave an answer that is not JSON") from None
    if not isinstance(document, dict) or document.get("status") != "success":
        raise AnswerError("did not answer with success")
    if document.get("warnings"):
        raise AnswerError(f"calls its answer partial: {str(document['warnings'])[:200]}")
    data = document.get("data")
    if not isinstance(data, dict) or data.get("resultType") != "vector":
        raise AnswerError("did not answer with a vector")
    if not isinstance(data.get("result"), list):
        raise AnswerError("answered with a vector that is no list")
    return tuple(map(_series, data["result"]))


def _series(entry: Any) -> Series:
    labels = entry.get("metric") if isinstance(entry, dict) else None
    value = entry.get("value") if isinstance(entry, dict) else None
    if not isinstance(labels, dict) or not isinstance(value, list) or len(value) != 2:
        raise AnswerError("answered with a series that can't be read")
    if not all(isinstance(part, str) for part in (value[1], labels.get("__name__"), *labels.values())):
        raise AnswerError("answered with a series whose parts are no texts")
    rest = {name: text for name, text in labels.items() if name != "__name__"}
    try:
        return Series(labels["__name__"], rest, float(value[1]))
    except ValueError:
        raise AnswerError(f"answered with a value that is no number: {value[1]!r:.40}") from None


def evidence_of(series: tuple[Series, ...], hosts: Mapping[str, HostEndpoints]) -> Evidence:
    """What the series say of these hosts; `host` is the label that our configuration gives each target."""
    samples = {host: _sample(host, series) for host, endpoints in hosts.items() if endpoints.cards}
    found = (
        path_loss(one.labels["host"], one.labels, one.value)
        for one in _of(series, LOSS_METRIC, PING_JOB)
        if one.labels.get("host") in hosts
    )
    return Evidence(samples, tuple(sorted(path for path in found if path is not None)))


def _sample(host: str, series: tuple[Series, ...]) -> HostSample:
    up = [one.value for one in _of(series, "up", CARD_JOB) if one.labels.get("host") == host]
    if not up:
        return HostSample({}, "Prometheus has no fresh scrape of its exporter")
    if any(value != 1 for value in up):
        return HostSample({}, "its exporter does not answer Prometheus")
    mine = (one for one in _of(series, STATUS_METRIC, CARD_JOB) if one.labels.get("host") == host)
    return HostSample(agreed_status((one.labels.get("serial", ""), one.value) for one in mine))


def _of(series: tuple[Series, ...], name: str, job: str) -> Iterator[Series]:
    return (one for one in series if one.name == name and one.labels.get("job") == job)
