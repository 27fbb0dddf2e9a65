"""Who is connected to a port of this machine, from the kernel's tables."""

from __future__ import annotations

from pathlib import Path

_ESTABLISHED = "01"


def established(port: int, net: Path = Path("/proc/self/net")) -> int:
    """Number of established TCP connections whose local port is `port`; 0 where no table can be read."""
    return sum(_count(net / name, port) for name in ("tcp", "tcp6"))


def _count(table: Path, port: int) -> int:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return 0
    wanted = f":{port:04X}"
    rows = (line.split() for line in lines)
    return sum(1 for row in rows if len(row) > 3 and row[1].endswith(wanted) and row[3] == _ESTABLISHED)
