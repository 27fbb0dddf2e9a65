"""Reading perftest's table by its heading: columns move between versions."""

from __future__ import annotations

from dataclasses import dataclass

_PEAK, _AVERAGE = "BW peak", "BW average"
_UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9, "GiB/sec": 8 * 2**30 / 1e9}


class TableError(ValueError):
    """Output without a table that can be read; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Gigabits (10^9) a second, of the largest message."""

    peak_gbps: float
    average_gbps: float


def parse_bandwidth(output: str) -> Bandwidth:
    """The last row of the table. Raises TableError."""
    heading: list[str] = []
    row: list[str] = []
    for line in output.splitlines():
        words = line.split()
        if line.strip().startswith("#bytes"):
            heading = _columns(line)
        elif heading and len(words) == len(heading) and words[0].isdecimal():
            row = words
    if not heading:
        raise TableError("the output has no table of bandwidths")
    if not row:
        raise TableError("the table of bandwidths has no row")
    return Bandwidth(_value(heading, row, _PEAK), _value(heading, row, _AVERAGE))


def _columns(line: str) -> list[str]:
    """Names of the columns: words, where `BW peak[…]` and `BW average[…]` are one each."""
    return line.replace(f"{_PEAK}[", "BW-peak[").replace(f"{_AVERAGE}[", "BW-average[").split()


def _value(heading: list[str], row: list[str], name: str) -> float:
    start = name.replace(" ", "-") + "["
    for column, text in zip(heading, row, strict=True):
        if column.startswith(start):
            unit = column[len(start) : -1]
            if unit not in _UNITS:
                raise TableError(f"the unit of {name} is {unit!r}, which is not known")
            try:
                return float(text) * _UNITS[unit]
            except ValueError:
                raise TableError(f"{name} is {text!r}, not a number") from None
    raise TableError(f"the table has no column {name!r}")
