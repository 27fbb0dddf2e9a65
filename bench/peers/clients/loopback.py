"""The limit: bare TCP over loopback, one sender and one receiver, a copy into and out of the kernel each.

`default` sockets keep the machine's congestion control, `unpaced` ones leave BBR where that is the default,
as connections to cards do (dataplane/core/base/card_socket.hpp): its pacing slows the limit down, and
flatters what is compared with it. While they have work they also ask for cores that wake up soon, as busy
gateways and cards do (dataplane/core/base/short_wakeups.hpp).
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.clients.base import Cache

_HEAD = struct.Struct("<BQ")
_PUT, _GET = 1, 2
_SECONDS = 60.0
_LATENCY_DEVICE = "/dev/cpu_dma_latency"
_IDLE_DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")


def receive(sock: socket.socket, into: memoryview) -> None:
    """Fill `into` from the socket. Raises OSError when the other side ended."""
    done = 0
    while done < len(into):
        count = sock.recv_into(into[done:])
        if count == 0:
            raise OSError("the other side of the loopback closed the connection")
        done += count


def set_up(sock: socket.socket, pacing: str) -> None:
    """Send at once; `unpaced`: without BBR where that is the machine's default."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if pacing == "default":
        return
    control = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    if control.rstrip(b"\0").startswith(b"bbr"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


class Loopback(Cache):
    """Sends and receives as many bytes as a batch has; stores nothing."""

    def __init__(self, memory: mmap.mmap, host: str, port: str, pacing: str) -> None:
        super().__init__(memory)
        self._view = memoryview(memory)
        self._socket = socket.create_connection((host, int(port)), timeout=_SECONDS)
        set_up(self._socket, pacing)
        self._wants_short_wakeups = pacing == "unpaced" and os.access(_LATENCY_DEVICE, os.W_OK)
        self._wakeups: int | None = None

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        self._shorten_wakeups()
        self._socket.sendall(_HEAD.pack(_PUT, size * len(offsets)))
        for offset in offsets:
            self._socket.sendall(self._view[offset : offset + size])
        receive(self._socket, memoryview(bytearray(1)))

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        self._shorten_wakeups()
        self._socket.sendall(_HEAD.pack(_GET, size * len(offsets)))
        for offset in offsets:
            receive(self._socket, self._view[offset : offset + size])

    def exists(self, keys: Sequence[str]) -> int:
        return len(keys)

    def clear(self, keys: Sequence[str]) -> None:
        """Nothing is stored; the case is over, and cores may sleep."""
        if self._wakeups is not None:
            os.close(self._wakeups)
            self._wakeups = None

    def _shorten_wakeups(self) -> None:
        if self._wants_short_wakeups and self._wakeups is None:
            self._wakeups = os.open(_LATENCY_DEVICE, os.O_WRONLY)
            is_virtual = _IDLE_DRIVER.exists() and _IDLE_DRIVER.read_text().strip() == "haltpoll"
            os.write(self._wakeups, struct.pack("i", 0 if is_virtual else 2))

    def close(self) -> None:
        self.clear([])
        self._socket.close()
        self._view.release()


def serve(server: socket.socket, memory: memoryview, pacing: str) -> None:
    """Serve one client until it goes."""
    client, _ = server.accept()
    with client:
        set_up(client, pacing)
        head = bytearray(_HEAD.size)
        while client.recv_into(head, 1, socket.MSG_PEEK):
            receive(client, memoryview(head))
            kind, size = _HEAD.unpack(head)
            if kind == _GET:
                client.sendall(memory[:size])
                continue
            receive(client, memory[:size])
            client.sendall(b"\0")


def main() -> None:
    """The other side; prints its port."""
    host, size, pacing = sys.argv[1:]
    memory = mmap.mmap(-1, int(size))
    memory[:] = b"\1" * len(memory)
    with socket.create_server((host, 0)) as server:
        print(f"ready {server.getsockname()[1]}", flush=True)
        while True:
            serve(server, memoryview(memory), pacing)


if __name__ == "__main__":
    main()
