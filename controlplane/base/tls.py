"""TLS for gRPC: both sides show certificates of the cluster's CA, and who the other side is.

Clients ask a host's certificate for HOST_DNS_NAME and not for the address that they called: they want a host
of the cluster, under whatever address or alias it was named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from controlplane.base.credentials import CredentialFiles, Credentials, CredentialsError
from controlplane.base.logging import get_logger
from controlplane.base.pki import HOST_DNS_NAME, Identity, PkiError, Role, identity_of, utc_now

# For every channel with `channel_credentials`.
TLS_OPTIONS: tuple[tuple[str, str], ...] = (("grpc.ssl_target_name_override", HOST_DNS_NAME),)
# Who calls over the administration socket: the operating system let nobody but root open it.
LOCAL_ADMIN = Identity(Role.ADMIN, "local")

log = get_logger("tls")


class ServerContext(Protocol):
    """The part of grpc.aio.ServicerContext that tells who calls."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """gRPC's properties of the connection."""


class NoPeerError(Exception):
    """The caller has shown no certificate that says who it is; the message is for the caller."""


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """What a client shows and whom it trusts. Use it with TLS_OPTIONS."""
    return grpc.ssl_channel_credentials(
        root_certificates=credentials.ca_pem,
        private_key=credentials.key_pem,
        certificate_chain=credentials.certificate_pem,
    )


class NewestCredentials:
    """What a client shows and trusts, from files that may be replaced while it runs.

    Called for each new connection. While the files can't be used those read before are, and at first some
    with which no host of a cluster can be reached: a client does not end because a file is late.
    """

    def __init__(self, files: CredentialFiles) -> None:
        self._files = files
        self._last = grpc.ssl_channel_credentials()
        self._said = ""

    def __call__(self) -> grpc.ChannelCredentials:
        """The newest that can be used; what is wrong with them, or will be soon, is logged once."""
        try:
            loaded = self._files.load()
        except CredentialsError as error:
            self._say("credentials not read", str(error))
            return self._last
        self._last = channel_credentials(loaded)
        if loaded.renewal_due(utc_now()):
            end = loaded.certificate.not_valid_after_utc
            self._say("certificate ends soon", f"{self._files.certificate} ends at {end:%Y-%m-%d %H:%M:%SZ}")
        else:
            self._said = ""
        return self._last

    def _say(self, event: str, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            log.warning(event, reason=reason)


def server_credentials(files: CredentialFiles) -> grpc.ServerCredentials:
    """A server's, which wants a certificate of the same CA from every client. Raises CredentialsError.

    Files that were replaced count for the next connection; while they can't be used, those before do.
    """
    source = CertificateSource(files)
    # None says "as before"; the stub knows nothing of it.
    return grpc.dynamic_ssl_server_credentials(
        source.first,
        source.renewed,  # type: ignore[arg-type]
        require_client_authentication=True,
    )


class CertificateSource:
    """A server's certificate, and a new one when its files have changed. Raises CredentialsError.

    gRPC asks at every handshake, and puts a new certificate in the place of the old one while handshakes on
    its other threads may still use that: given one each time, a server that many clients connect to at
    once crashed within a second. So it gets one when there is one.
    """

    def __init__(self, files: CredentialFiles) -> None:
        self._files = files
        self._seen = self._state()
        self.first = _server_configuration(files.load())

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificate; None while there is none, or none that can be used."""
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            return _server_configuration(self._files.load())
        except CredentialsError as error:
            log.warning("certificate not renewed", reason=str(error))
            return None

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_state_of(path) for path in (self._files.ca, self._files.certificate, self._files.key))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _server_configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    pair = (credentials.key_pem, credentials.certificate_pem)
    return grpc.ssl_server_certificate_configuration([pair], credentials.ca_pem)


def peer_identity(context: ServerContext) -> Identity:
    """The verified identity of a caller. Raises NoPeerError."""
    properties = context.auth_context()
    kind = b"".join(properties.get("transport_security_type", ()))
    if kind == b"local":
        return LOCAL_ADMIN
    chain = properties.get("x509_pem_cert", ())
    if kind != b"ssl" or len(chain) != 1:
        raise NoPeerError(
            "this host takes calls over TLS with a certificate only: name --ca, --cert and --key, from "
            "clustercli pki issue"
        )
    try:
        return identity_of(bytes(chain[0]))
    except PkiError as error:
        raise NoPeerError(f"the certificate that was shown can't be used: {error}") from error
