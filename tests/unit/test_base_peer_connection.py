"""A connection is closed underneath gRPC: the one that is named, and no other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from controlplane.base.peer_connection import close_connection


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def ends(request: pytest.FixtureRequest) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Two connections, each with the client's end and the server's, over one kind of address."""
    address: str = request.param
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((address, 0))
        listener.listen()
        made = []
        for _ in range(2):
            client = stack.enter_context(socket.socket(family))
            client.connect(listener.getsockname()[:2])
            made.append((client, stack.enter_context(listener.accept()[0])))
        yield made


def name_of(client: socket.socket) -> str:
    """The client as gRPC's context names it to a server."""
    host, port = client.getsockname()[:2]
    host = host.removeprefix("::ffff:")
    return f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"


def test_the_named_connection_ends_and_the_other_does_not(
    ends: list[tuple[socket.socket, socket.socket]],
) -> None:
    (named, server), (other, other_server) = ends
    before = len(os.listdir("/proc/self/fd"))
    assert close_connection(name_of(named))
    assert named.recv(1) == b""
    assert server.recv(1) == b""
    other.send(b"x")
    assert other_server.recv(1) == b"x"
    # Less where something of another test was collected meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before
    server.close()
    assert not close_connection(name_of(named))


@pytest.mark.parametrize(
    "peer", ["unix:/run/x.sock", "unix:", "", "ipv4:192.0.2.1:1", "ipv6:%5B2001:db8::1%5D:1"]
)
def test_who_is_not_connected_over_tcp(peer: str) -> None:
    assert not close_connection(peer)
