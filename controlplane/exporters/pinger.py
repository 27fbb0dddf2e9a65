"""Sends one ICMP echo request to every target in every round, and keeps what came back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from icmplib import (
    AsyncSocket,
    ICMPLibError,
    ICMPRequest,
    ICMPSocketError,
    ICMPv4Socket,
    ICMPv6Socket,
    SocketAddressError,
    SocketPermissionError,
)

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.base.ping_targets import MAX_BYTES, PingTarget, PingTargets, PingTargetsError, parse_targets
from controlplane.base.text_file import NotReadableError, read_bounded
from controlplane.exporters.ping_window import LossWindow

NO_SOCKET = (
    "this process may open neither raw nor datagram ICMP sockets: give it the capability CAP_NET_RAW "
    "(systemd: AmbientCapabilities=CAP_NET_RAW, containers: --cap-add NET_RAW), or put its group into "
    "net.ipv4.ping_group_range"
)

log = get_logger("ping-exporter")


class ProbeError(Exception):
    """This host could not send: that says nothing about the destination."""


# Round trip in seconds, None when no reply came within the seconds given. Raises ProbeError.
Probe = Callable[[str, float], Awaitable[float | None]]


class IcmpProbe:
    """One echo request through icmplib, with a raw socket or, where that is not allowed, a datagram one.

    `source` is the address to send from; empty leaves it to the routes.
    """

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._privileged = True
        self._id = random.randrange(0xFFFF)

    async def __call__(self, address: str, seconds: float) -> float | None:
        """Ping a literal address once."""
        try:
            return await self._ping(address, seconds)
        except SocketPermissionError:
            self._privileged = not self._privileged
        try:
            return await self._ping(address, seconds)
        except SocketPermissionError:
            raise ProbeError(NO_SOCKET) from None

    async def _ping(self, address: str, seconds: float) -> float | None:
        with self._open(address) as socket:
            request = ICMPRequest(destination=address, id=self._next_id(), sequence=0)
            try:
                # Connected, so that replies to all the other probes don't come here too, and nobody else's
                # reply is taken for this one's.
                socket.sock.connect((address, 0))
                socket.send(request)
                reply = await socket.receive(request, seconds)
                reply.raise_for_status()
            except (ICMPLibError, OSError):
                return None
            return float(reply.time - request.time)

    def _open(self, address: str) -> AsyncSocket:
        version6 = ":" in address
        kind = ICMPv6Socket if version6 else ICMPv4Socket
        source = self._source if self._source and (":" in self._source) == version6 else None
        try:
            return AsyncSocket(kind(source, self._privileged))
        except SocketPermissionError:
            raise
        except SocketAddressError:
            raise ProbeError(f"{self._source} is not an address of this host: correct --source") from None
        except ICMPSocketError as error:
            raise ProbeError(f"no ICMP socket: {error}") from None

    def _next_id(self) -> int:
        """An id of each probe's own, so that a late reply to an earlier one is not taken for its."""
        self._id = self._id % 0xFFFF + 1
        return self._id


@dataclass(frozen=True, slots=True)
class PingOptions:
    """Times in seconds. `timeout` is at most `interval`; `minimum` probes make a measurement."""

    interval: float = 1.0
    timeout: float = 1.0
    window: float = 20.0
    minimum: int = 5


class TargetsFile:
    """Re-reads the targets file when it changes; what can't be read leaves the last good targets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.targets: PingTargets | None = None
        self.error = "not read yet"

    def refresh(self) -> None:
        """Look at the file, and read it if it is another one than before. Logs once per change."""
        try:
            status = self._path.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if version == self._seen and not self.error:
                return
            self.targets = parse_targets(read_bounded(self._path, MAX_BYTES))
        except (OSError, NotReadableError, PingTargetsError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._failed(f"{self._path}: {why}")
            return
        self._seen, self.error = version, ""
        log.info("targets", source=self.targets.source, count=len(self.targets.targets))

    def _failed(self, error: str) -> None:
        if error != self.error:
            kept = len(self.targets.targets) if self.targets is not None else 0
            log.warning("targets file not usable", reason=error, effect=f"{kept} earlier targets are kept")
        self.error = error


class Pinger:
    """The rounds. What it knows is read by the collector between them."""

    def __init__(
        self, file: TargetsFile, probe: Probe, options: PingOptions, clock: Clock = time.monotonic
    ) -> None:
        self.file = file
        self.error = "no round yet"
        self.windows: dict[PingTarget, LossWindow] = {}
        self._probe = probe
        self._options = options
        self.clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """One round every interval until `stop` is set."""
        while not stop.is_set():
            began = self.clock()
            await self.round()
            try:
                async with asyncio.timeout(max(0.0, self._options.interval - (self.clock() - began))):
                    await stop.wait()
            except TimeoutError:
                continue

    async def round(self) -> None:
        """Ping every target once, all at once."""
        self.file.refresh()
        wanted = self.file.targets.targets if self.file.targets is not None else ()
        self.windows = {target: self.windows.get(target) or self._new_window() for target in wanted}
        errors = await asyncio.gather(*(self._one(target) for target in wanted))
        self._note_error(next(filter(None, errors), ""))

    async def _one(self, target: PingTarget) -> str:
        """Ping one target; what kept this host from sending, or nothing."""
        window = self.windows[target]
        try:
            window.note(self.clock(), await self._probe(target.address, self._options.timeout))
        except ProbeError as error:
            # An old measurement must not stand for what can't be measured any more.
            window.clear()
            return str(error)
        return ""

    def _note_error(self, error: str) -> None:
        if error != self.error:
            if error:
                log.error("cannot ping", reason=error, effect="no packet loss is reported")
            else:
                log.info("pings")
        self.error = error

    def _new_window(self) -> LossWindow:
        return LossWindow(self._options.window, self._options.minimum)
