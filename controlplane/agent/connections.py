"""Who is connected to a port of this machine, and who listens, from the kernel's tables."""

from __future__ import annotations

from pathlib import Path

_ESTABLISHED, _LISTEN = "01", "0A"
NET = Path("/proc/self/net")


def established(port: int, net: Path = NET) -> int:
    """Number of established TCP connections whose local port is `port`; 0 where no table can be read."""
    return _count(port, _ESTABLISHED, net)


def is_listening(port: int, net: Path = NET) -> bool:
    """Whether some process of this machine listens on the TCP port."""
    return _count(port, _LISTEN, net) > 0


def _count(port: int, state: str, net: Path) -> int:
    wanted = f":{port:04X}"
    rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(net / name)]
    return sum(1 for row in rows if len(row) > 3 and row[1].endswith(wanted) and row[3] == state)


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
