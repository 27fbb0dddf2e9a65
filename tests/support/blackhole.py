"""A server that accepts connections and never says anything, like a host whose process is suspended."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def black_hole(host: str) -> Iterator[str]:
    """Yield the `host:port` of a listener whose connections are never accepted by a program."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen(64)
        yield f"{host}:{listener.getsockname()[1]}"
