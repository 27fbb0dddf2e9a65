"""Closes a caller's TCP connection underneath gRPC.

gRPC's asyncio server has no call that ends a stream at once. The status of a stream waits behind its
messages, and while its peer reads none of them all of that stays, a handler included, for as long as the
connection lives.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from urllib.parse import unquote

_DESCRIPTORS = "/proc/self/fd"

# Address and port.
_Peer = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def close_connection(peer: str) -> bool:
    """Shut down this process's connection from `peer`, which is named as by gRPC's `context.peer()`.

    Whether there was one. gRPC then sees its end, and ends everything on it.
    """
    wanted = _parse(peer)
    return wanted is not None and any(_shut_down(int(name), wanted) for name in os.listdir(_DESCRIPTORS))


def _parse(peer: str) -> _Peer | None:
    """`ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`; None for what is no TCP connection."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return _peer(host.strip("[]"), int(port)) if kind in {"ipv4", "ipv6"} else None


def _peer(host: str, port: int) -> _Peer:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address, port


def _shut_down(descriptor: int, wanted: _Peer) -> bool:
    """Shut this descriptor down if it is the connection; a copy is looked at, which stays what it is."""
    try:
        if not os.readlink(f"{_DESCRIPTORS}/{descriptor}").startswith("socket:"):
            return False
        copy = os.dup(descriptor)
    except OSError:  # closed since it was listed
        return False
    try:
        with socket.socket(fileno=copy) as connection:
            if connection.family not in {socket.AF_INET, socket.AF_INET6}:
                return False
            if _peer(*connection.getpeername()[:2]) != wanted:
                return False
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # listens, or ended meanwhile
        return False
    return True
