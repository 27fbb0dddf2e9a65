"""How this host proves who it is: nothing in `insecure-loopback`, certificates of the cluster's CA in `mtls`.

The files are in AWC_PKI_DIR: `ca.pem`, `cert.pem`, `key.pem`, and `ca.key`, with which every host can sign.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import grpc

from controlplane.base import pki
from controlplane.base.credentials import (
    CredentialFiles,
    Credentials,
    CredentialsError,
    read_private,
    write_credentials,
    write_file,
)
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.base.tls import TLS_OPTIONS, NewestCredentials, channel_credentials
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.settings import MTLS, ClusterSettings
from controlplane.store.endpoints import CredentialsSource

CA_KEY_FILE = "ca.key"
NO_CERTIFICATE = (
    "this host has no certificate yet: run clustercli create_cluster on the first host, and clustercli "
    "add_node -n HOST --token TOKEN on the others"
)
_CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

log = get_logger("trust")


class Trust:
    """The host's security mode and credentials. `changed` is set, and `generation` grows, with new ones."""

    def __init__(self, settings: ClusterSettings, now: Callable[[], datetime] = pki.utc_now) -> None:
        self.secure = settings.security == MTLS
        self.files = CredentialFiles.in_directory(settings.pki_dir)
        self.changed = asyncio.Event()
        self.generation = 0
        self._host = settings.host
        self._address = settings.address
        self._ca_key = settings.pki_dir / CA_KEY_FILE
        self._now = now
        self._newest = NewestCredentials(self.files)
        self._said = OnChange()

    @property
    def ready(self) -> bool:
        """Whether there is all that is needed to speak to other hosts."""
        return not self.secure or self.files.exist()

    def load(self) -> Credentials:
        """The host's credentials. Raises RequestError."""
        if not self.files.exist():
            raise RequestError(NO_CERTIFICATE)
        try:
            return self.files.load(self._now)
        except CredentialsError as error:
            raise RequestError(str(error)) from error

    def load_authority(self) -> pki.Authority:
        """The CA with its key. Raises RequestError."""
        try:
            key = read_private(self._ca_key)
            ca_pem = self.files.load(self._now, expired_too=True).ca_pem
            return pki.load_authority(ca_pem, key, self._now())
        except (CredentialsError, pki.PkiError) as error:
            raise RequestError(
                f"{self._host} can't sign: {self._ca_key}: {error}; ask another host of the cluster"
            ) from error

    def channel(self, target: str) -> grpc.aio.Channel:
        """A channel to another host's API. Raises RequestError."""
        if not self.secure:
            return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        credentials = channel_credentials(self.load())
        return grpc.aio.secure_channel(target, credentials, options=(*_CHANNEL_OPTIONS, *TLS_OPTIONS))

    def etcd_credentials(self) -> CredentialsSource | None:
        """What etcd's client uses for each new connection, or None without TLS."""
        return self._newest if self.secure else None

    def etcd_flags(self) -> dict[str, str]:
        """etcd's flags for TLS; its peers are hosts only, whatever else the CA has signed."""
        if not self.secure:
            return {}
        return etcd_tls_flags(self.files)

    def create_authority(self, cluster_name: str, cluster_uuid: str) -> None:
        """Make a new cluster's CA, and this host's certificate from it. Raises RequestError."""
        try:
            authority = pki.create_authority(cluster_name, cluster_uuid, self._now())
            key = pki.new_key()
            certificate = self.sign_host(authority, key.public_key(), self._host, self._address)
        except pki.PkiError as error:
            raise RequestError(str(error)) from error
        self.install(
            authority.certificate_pem, pki.to_pem(certificate), pki.key_pem(key), pki.key_pem(authority.key)
        )
        log.info("cluster CA made", fingerprint=pki.fingerprint(authority.certificate))

    def sign_host(
        self, authority: pki.Authority, key: pki.PublicKey, host: str, address: str
    ) -> pki.Certificate:
        """A host's certificate. Raises PkiError."""
        identity = pki.Identity(pki.Role.HOST, host)
        return pki.issue(authority, key, identity, self._now(), addresses=[address])

    def install(self, ca_pem: bytes, certificate_pem: bytes, key_pem: bytes, ca_key_pem: bytes) -> None:
        """Use these credentials from now on. OSError when they can't be written."""
        write_file(self._ca_key, ca_key_pem, private=True)
        write_credentials(self.files, ca_pem, certificate_pem, key_pem)
        self._announce()

    def renew_when_due(self) -> None:
        """Sign this host's certificate anew, for the same key: in the last third of its time or after it;
        when it is not valid yet, since the host's clock was ahead when it was signed; or when the host has
        another address now, which etcd's members would not accept.

        Only `cert.pem` is replaced, so no reader ever meets a certificate with another one's key.
        """
        if not self.secure or not self.files.exist():
            return
        try:
            present = self.files.load(self._now, expired_too=True)
            if not self._is_due(present):
                self._said = OnChange()
                return
            authority, key = self.load_authority(), pki.load_key(present.key_pem)
            fresh = self.sign_host(authority, key.public_key(), self._host, self._address)
            write_file(self.files.certificate, pki.to_pem(fresh), private=False)
        except (CredentialsError, RequestError, pki.PkiError, OSError) as error:
            if self._said.changed(str(error)):
                log.warning("certificate not renewed", reason=str(error))
            return
        self._announce()
        log.info("certificate renewed", expires=f"{fresh.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}")

    def _is_due(self, present: Credentials) -> bool:
        now, certificate = self._now(), present.certificate
        moved = self._address not in pki.addresses_of(certificate)
        return moved or now < certificate.not_valid_before_utc or present.renewal_due(now)

    def _announce(self) -> None:
        self.generation += 1
        self.changed.set()


def etcd_tls_flags(files: CredentialFiles) -> dict[str, str]:
    """Clients and peers show certificates of our CA; peers must be hosts, and clients hosts or gateways, by
    the names that only these have.

    Peers are not held to the addresses in their certificates: a host with several addresses may call from
    any of them. The JSON gateway is off, since it would speak to etcd with the member's own certificate.
    """
    ca, certificate, key = (str(path) for path in (files.ca, files.certificate, files.key))
    return {
        "client-cert-auth": "true",
        "client-cert-allowed-hostname": f"{pki.HOST_DNS_NAME},{pki.GATEWAY_DNS_NAME}",
        "trusted-ca-file": ca,
        "cert-file": certificate,
        "key-file": key,
        "peer-client-cert-auth": "true",
        "peer-trusted-ca-file": ca,
        "peer-cert-file": certificate,
        "peer-key-file": key,
        "peer-cert-allowed-hostname": pki.HOST_DNS_NAME,
        "experimental-peer-skip-client-san-verification": "true",
        "enable-grpc-gateway": "false",
        "tls-min-version": "TLS1.2",
    }
