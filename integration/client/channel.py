"""Sockets to the gateway: non-blocking; on Unix sockets with passed descriptors and a pidfd."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct

from integration.client.config import ClientConfig

_PEER_CREDENTIALS = struct.Struct("iII")
_MAX_DESCRIPTORS = 4
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)


class GatewayProcess:
    """The process at the other end of a Unix socket, held by pidfd."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._ended = False

    def __del__(self) -> None:
        os.close(self._pidfd)

    def ended(self) -> bool:
        """True once the process has ended; never true by mistake."""
        if not self._ended:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            self._ended = bool(poll.poll(0))
        return self._ended


def gateway_process(sock: socket.socket) -> GatewayProcess | None:
    """The peer of a connected Unix socket; None where it can't be seen (another PID namespace, or gone
    already).

    A pid that was reused between the two calls names a younger process: its end then comes later than the
    gateway's, which errs to the safe side.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid = _PEER_CREDENTIALS.unpack(raw)[0]
    if pid <= 0:
        return None
    try:
        return GatewayProcess(os.pidfd_open(pid))
    except OSError:
        return None


def open_socket(config: ClientConfig) -> socket.socket:
    """A socket whose connection to the gateway is begun; raises OSError where it failed at once."""
    if config.socket is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | tuple[str, int] = config.socket
    else:
        host = config.ip
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = (host, config.port)
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code == 0 or (code == errno.EINPROGRESS and config.socket is None):
        return sock
    sock.close()
    raise OSError(code, os.strerror(code))


def receive(sock: socket.socket, into: memoryview, descriptors: list[int] | None) -> int:
    """Bytes received into `into`; 0 at the end of the stream. Raises BlockingIOError when there are none yet.

    Passed descriptors are appended to `descriptors`; where that is None the kernel discards them.
    """
    if descriptors is None:
        return sock.recv_into(into)
    count, ancillary, _, _ = sock.recvmsg_into([into], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            descriptors.extend(numbers)
    return count


def send_some(sock: socket.socket, parts: list[memoryview], descriptor: int) -> int:
    """Bytes of `parts` that the socket took without blocking; 0 when it is full.

    A `descriptor` of 0 and more goes with the first byte.
    """
    rights = array.array("i", [descriptor] if descriptor >= 0 else [])
    try:
        return sock.sendmsg(parts, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])
    except BlockingIOError:
        return 0
