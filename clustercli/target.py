"""Whom clustercli calls and how it proves who it is: a certificate, root's socket, nothing on loopback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from controlplane.base.addresses import AddressError, is_loopback, parse_host_port
from controlplane.base.credentials import CredentialFiles, Credentials, CredentialsError
from controlplane.base.tls import TLS_OPTIONS, channel_credentials

DEFAULT_PORT = 5000
LOOPBACK = "127.0.0.1"
# Where the cluster service of this host listens for root (AWC_ADMIN_SOCKET).
ADMIN_SOCKET = Path("/run/awide-cluster/admin.sock")
_SOCKET_SCHEME = "unix:"
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class TargetError(ValueError):
    """An option, or a combination of them, that can't be used: which, and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """gRPC's address (`HOST:PORT` or `unix:PATH`), and credentials and their files where there are some."""

    address: str
    credentials: Credentials | None = None
    files: CredentialFiles | None = None

    @property
    def is_socket(self) -> bool:
        """Whether this is a host's administration socket."""
        return self.address.startswith(_SOCKET_SCHEME)

    def channel(self) -> grpc.Channel:
        """A fresh channel, to be closed by the caller."""
        if self.credentials is not None:
            secured = channel_credentials(self.credentials)
            return grpc.secure_channel(self.address, secured, options=(*_OPTIONS, *TLS_OPTIONS))
        if self.is_socket:
            local = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
            return grpc.secure_channel(self.address, local, options=_OPTIONS)
        return grpc.insecure_channel(self.address, options=_OPTIONS)

    def __str__(self) -> str:
        return self.address


def read_target(
    host: str | None, ca: Path | None, cert: Path | None, key: Path | None, socket: Path = ADMIN_SOCKET
) -> Target:
    """What --host, --ca, --cert and --key ask for. Raises TargetError.

    Without --host and certificate this host is asked, at its socket where there is one.
    """
    files = _files(ca, cert, key)
    credentials = _load(files) if files is not None else None
    if host is None:
        if credentials is None and socket.is_socket():
            return Target(f"{_SOCKET_SCHEME}{socket}")
        host = LOOPBACK
    if host.startswith(_SOCKET_SCHEME):
        if credentials is not None:
            raise TargetError(f"--host {host} takes no certificate: leave --ca, --cert and --key out")
        return Target(host)
    try:
        place = parse_host_port(host, DEFAULT_PORT)
    except AddressError as error:
        raise TargetError(f"--host: {error}") from None
    literal = place.host.replace(".", "").isdigit() or ":" in place.host
    if credentials is None and literal and not is_loopback(place.host):
        raise TargetError(
            f"--host {host} is not a loopback address: give --ca, --cert and --key (from clustercli pki "
            "issue), so that nothing goes unencrypted over the network"
        )
    return Target(str(place), credentials, files)


def _files(ca: Path | None, cert: Path | None, key: Path | None) -> CredentialFiles | None:
    given = {"--ca": ca, "--cert": cert, "--key": key}
    missing = [name for name, path in given.items() if path is None]
    if len(missing) == len(given):
        return None
    if ca is None or cert is None or key is None:
        raise TargetError(f"{', '.join(missing)} is missing: --ca, --cert and --key go together")
    return CredentialFiles(ca, cert, key)


def _load(files: CredentialFiles) -> Credentials:
    try:
        return files.load()
    except CredentialsError as error:
        raise TargetError(str(error)) from None
