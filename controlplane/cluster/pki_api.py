"""PkiService: thin handlers over the issuer."""

from __future__ import annotations

from typing import Any

import grpc
from akv.v1 import pki_pb2, pki_pb2_grpc

from controlplane.base.request_errors import Denied
from controlplane.base.tls import NoPeerError, peer_identity
from controlplane.cluster.issuer import Issuer
from controlplane.cluster.rpc import Handlers

CALL_SECONDS = 10.0
SERVICE = "akv.v1.PkiService"


class PkiServicer(pki_pb2_grpc.PkiServiceServicer):
    """gRPC handlers of one host."""

    def __init__(self, host: str, issuer: Issuer) -> None:
        self._run = Handlers(host).run
        self._issuer = issuer

    def register(self, server: grpc.aio.Server) -> str:
        """Serve these on `server` too; the service's name."""
        pki_pb2_grpc.add_PkiServiceServicer_to_server(self, server)
        return SERVICE

    async def IssueCertificate(self, request: Any, context: Any) -> pki_pb2.IssueCertificateResponse:
        """Sign a certificate for a gateway, an agent or an administrator."""
        return await self._run(
            context,
            CALL_SECONDS,
            lambda _: self._issuer.issue(request.role, request.name, request.request_pem, request.days),
        )

    async def RenewCertificate(self, request: Any, context: Any) -> pki_pb2.RenewCertificateResponse:
        """Sign anew what the caller already is."""

        async def work(_: float) -> pki_pb2.RenewCertificateResponse:
            try:
                identity = peer_identity(context)
            except NoPeerError as error:
                raise Denied(str(error)) from error
            return await self._issuer.renew(identity, request.request_pem)

        return await self._run(context, CALL_SECONDS, work)

    async def RevokeName(self, request: Any, context: Any) -> pki_pb2.RevokeNameResponse:
        """Let nobody of this name do anything any more."""
        return await self._run(context, CALL_SECONDS, lambda _: self._issuer.revoke(request.name))

    async def CreateToken(self, request: Any, context: Any) -> pki_pb2.CreateTokenResponse:
        """Make a join token."""
        return await self._run(
            context, CALL_SECONDS, lambda _: self._issuer.create_token(request.ttl_seconds)
        )

    async def GetPki(self, request: Any, context: Any) -> pki_pb2.GetPkiResponse:
        """The CA, names and open tokens."""
        return await self._run(context, CALL_SECONDS, lambda _: self._issuer.overview())
