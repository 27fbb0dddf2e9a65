"""Counters of InfiniBand and RoCE ports as rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from akv.v1 import agent_pb2

# A longer gap averages over too much to mean anything.
MAX_GAP_SECONDS = 120.0

PortId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PortRate:
    """Bytes per second in each direction."""

    transmit: float
    receive: float


def port_id(port: agent_pb2.IbPort) -> PortId:
    """What names a port on its node."""
    return port.hca, port.port


def rate(before: int, now: int, seconds: float) -> float:
    """A counter's increase per second; 0 for a first reading, a reset, or a gap over 120 s."""
    if before == 0 or now < before or not 0 < seconds <= MAX_GAP_SECONDS:
        return 0.0
    return (now - before) / seconds


def port_rates(
    before: Iterable[agent_pb2.IbPort], now: Iterable[agent_pb2.IbPort], seconds: float
) -> Mapping[PortId, PortRate]:
    """Rates of every port between two readings that are `seconds` apart."""
    earlier = {port_id(port): port.counters for port in before}
    return {
        port_id(port): PortRate(
            _rate(earlier, port, "port_xmit_data", seconds), _rate(earlier, port, "port_rcv_data", seconds)
        )
        for port in now
    }


def _rate(
    earlier: Mapping[PortId, Mapping[str, int]], port: agent_pb2.IbPort, name: str, seconds: float
) -> float:
    return rate(earlier.get(port_id(port), {}).get(name, 0), port.counters.get(name, 0), seconds)
