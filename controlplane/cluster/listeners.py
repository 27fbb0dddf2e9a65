"""Where a host is called: :5000 without TLS on loopback, or a socket for root, :5000 with TLS and enrollment.

With `mtls` a host that is in no cluster has no certificate: it can be called on its socket only. The other
two open as soon as it has one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import grpc

from controlplane.base.credentials import CredentialsError, CredentialsNotNow
from controlplane.base.logging import get_logger
from controlplane.base.tls import server_credentials
from controlplane.cluster.api import ClusterServer
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.enrollment import EnrollServer
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust

MakeServer = Callable[[str, grpc.ServerCredentials | None], ClusterServer]
log = get_logger("listeners")


class Listeners:
    """All servers of one host. `make_server` makes one for an endpoint and its credentials."""

    def __init__(
        self, settings: ClusterSettings, trust: Trust, make_server: MakeServer, enrollment: EnrollServer
    ) -> None:
        self._settings = settings
        self._trust = trust
        self._make_server = make_server
        self._enrollment = enrollment
        self._servers: list[ClusterServer] = []
        self._serves_api = self._serves_enrollment = False
        self._generation = 0
        self._said = OnChange()

    async def start(self) -> None:
        """Open what can be opened now. Raises OSError, and CredentialsError for files that can't be used.

        A host that boots with a wrong clock opens to the network when that is right.
        """
        if not self._trust.secure:
            await self._serve(self._settings.api_endpoint, None)
            return
        self._trust.renew_when_due()
        await self._serve_socket(self._settings.admin_socket)
        if not self._trust.ready:
            return
        try:
            await self._open_to_network()
        except CredentialsNotNow as error:
            self._say(error)

    async def cycle(self) -> None:
        """Open to the network once there is a certificate, and renew it when that is due."""
        if not self._trust.secure:
            return
        self._trust.renew_when_due()
        if self._generation != self._trust.generation or (self._trust.ready and not self._serves_enrollment):
            self._generation = self._trust.generation
            await self._take_certificate()

    async def stop(self) -> None:
        """Close everything."""
        await asyncio.gather(*(server.stop() for server in self._servers))
        await self._enrollment.stop()
        if self._trust.secure:
            self._settings.admin_socket.unlink(missing_ok=True)

    async def _take_certificate(self) -> None:
        try:
            self._enrollment.renew()
            await self._open_to_network()
        except (OSError, CredentialsError) as error:
            self._say(error)

    def _say(self, error: Exception) -> None:
        if self._said.changed(str(error)):
            log.warning("not open to other hosts", reason=str(error))

    async def _open_to_network(self) -> None:
        """Each of the two is opened once; what could not be opened is tried again."""
        if not self._serves_api:
            await self._serve(self._settings.api_endpoint, server_credentials(self._trust.files))
            self._serves_api = True
        if not self._serves_enrollment:
            await self._enrollment.start()
            self._serves_enrollment = True

    async def _serve(self, endpoint: str, credentials: grpc.ServerCredentials | None) -> None:
        server = self._make_server(endpoint, credentials)
        await server.start()
        self._servers.append(server)

    async def _serve_socket(self, path: Path) -> None:
        """Only its owner can open the socket: its directory, and the mode it is made with, see to that."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = os.umask(0o177)
        try:
            local = grpc.local_server_credentials(grpc.LocalConnectionType.UDS)
            await self._serve(f"unix:{path}", local)
        finally:
            os.umask(before)
