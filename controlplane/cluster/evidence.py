"""What the leader's metrics say, as plain values: the input of verdicts, packet loss and damping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostEndpoints:
    """Where a host's exporters serve, HOST:PORT each; empty where the host runs none. `tls`: over HTTPS."""

    cards: str = ""
    ping: str = ""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class HostSample:
    """What one host's exporter said: `status` maps serial to xdp_service_status, or `error` says why not."""

    status: Mapping[str, float]
    error: str = ""


@dataclass(frozen=True, slots=True, order=True)
class PathLoss:
    """Packet loss that the host `source` sees to a data address of the host `destination`, 0 to 100."""

    source: str
    destination: str
    address: str
    percent: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reading of all metrics. A host or a path that is missing is unknown.

    `problem` says why nothing could be read at all; then there are samples with that error, and no loss.
    """

    samples: Mapping[str, HostSample] = field(default_factory=dict)
    loss: tuple[PathLoss, ...] = ()
    problem: str = ""


def nothing_known(hosts: Mapping[str, HostEndpoints], problem: str) -> Evidence:
    """The evidence when the source as a whole gave none."""
    samples = {host: HostSample({}, problem) for host, endpoints in hosts.items() if endpoints.cards}
    return Evidence(samples, (), problem)
