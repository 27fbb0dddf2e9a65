"""Signs certificates on this host, and keeps account of names, etcd users and join tokens in the cluster."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from akv.v1 import pki_pb2

from controlplane.base import pki
from controlplane.base.addresses import AddressError, canonical_address
from controlplane.base.join_token import JoinToken
from controlplane.base.logging import get_logger
from controlplane.base.pki import Identity, PkiError, Role
from controlplane.base.request_errors import Denied, InvalidRequest, NotFound, RequestError, Unavailable
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust
from controlplane.store import pki_records
from controlplane.store.access import (
    GATEWAY_ROLE,
    ROOT_ROLE,
    add_user,
    enable_access_control,
    remove_user,
)
from controlplane.store.client import EtcdClient
from controlplane.store.errors import StoreError
from controlplane.store.hosts import read_host, update_host
from controlplane.store.pki_records import NameRecord, TokenRecord

TOKEN_SECONDS = 24 * 3600
MAX_TOKEN_SECONDS = 30 * 24 * 3600
MAX_OPEN_TOKENS = 64

_ETCD_ROLES = {Role.HOST: ROOT_ROLE, Role.GATEWAY: GATEWAY_ROLE}
NOT_SECURE = "this cluster has no certificates: its hosts run with AWC_SECURITY=insecure-loopback"

log = get_logger("pki")


class Issuer:
    """One host's part in the cluster's PKI. `now` is the wall clock."""

    def __init__(
        self,
        settings: ClusterSettings,
        trust: Trust,
        link: EtcdLink,
        now: Callable[[], datetime] = pki.utc_now,
    ) -> None:
        self._settings = settings
        self._trust = trust
        self._link = link
        self._now = now

    async def secure_cluster(self, client: EtcdClient) -> None:
        """Close a new cluster's etcd to all but hosts and gateways. Can be repeated. Raises StoreError."""
        if not self._trust.secure:
            return
        host = self._settings.host
        await enable_access_control(client, host)
        own = self._trust.load()
        await pki_records.claim_name(client, self._name(own.identity, own.certificate))

    async def issue(
        self, role: str, name: str, request_pem: str, days: int
    ) -> pki_pb2.IssueCertificateResponse:
        """Sign for a gateway, an agent or an administrator. Raises RequestError."""
        if role not in set(Role) or role == Role.HOST:
            raise InvalidRequest(
                f"{role[:40]!r} is no role to issue a certificate for: choose admin, gateway or agent "
                "(hosts get theirs by add_node --token)"
            )
        certificate = await self._sign(Identity(Role(role), name), request_pem, days or pki.CERTIFICATE_DAYS)
        return pki_pb2.IssueCertificateResponse(
            certificate_pem=pki.to_pem(certificate).decode(), ca_pem=self._trust.load().ca_pem.decode()
        )

    async def renew(self, identity: Identity, request_pem: str) -> pki_pb2.RenewCertificateResponse:
        """Sign anew what the caller already is. Raises RequestError."""
        if identity.role is Role.HOST:
            raise InvalidRequest("a host renews its certificate by itself")
        certificate = await self._sign(identity, request_pem, pki.CERTIFICATE_DAYS)
        return pki_pb2.RenewCertificateResponse(
            certificate_pem=pki.to_pem(certificate).decode(), ca_pem=self._trust.load().ca_pem.decode()
        )

    async def revoke(self, name: str) -> pki_pb2.RevokeNameResponse:
        """Let nobody of this name do anything any more; can be repeated. Raises RequestError."""
        self._must_be_secure()
        client = self._link.client
        try:
            holder = await pki_records.read_name(client, name)
            if holder is None:
                raise NotFound(f"nobody has a certificate of the name {name[:80]!r}: see clustercli pki show")
            if holder.role == Role.HOST:
                await _check_is_out(client, name)
            revoked = await pki_records.revoke_name(client, name) or holder
            await remove_user(client, name)
            if revoked.role == Role.HOST:  # it may have joined again since the check
                await update_host(client, name, lambda found: found and replace(found, enabled=False))
        except StoreError as error:
            raise Unavailable(f"{name[:80]} is not revoked: etcd: {error}; ask again") from error
        log.info("name revoked", name=name, role=revoked.role)
        return pki_pb2.RevokeNameResponse(role=revoked.role)

    async def create_token(self, ttl_seconds: int) -> pki_pb2.CreateTokenResponse:
        """Make a join token; tokens that have expired go. Raises RequestError."""
        ttl = ttl_seconds or TOKEN_SECONDS
        if not 60 <= ttl <= MAX_TOKEN_SECONDS:
            raise InvalidRequest(f"a token for {ttl} s: choose 60 s to {MAX_TOKEN_SECONDS} s")
        self._must_be_secure()
        fingerprint = pki.fingerprint(self._trust.load_authority().certificate)
        token = JoinToken.new(self._settings.enroll_port, fingerprint)
        moment = self._now().timestamp()
        record = TokenRecord(token.token_id, pki_records.hash_of(token.secret), moment + ttl)
        try:
            present = await pki_records.read_tokens(self._link.client)
            expired = [old for old in present if old.expires <= moment]
            if len(present) - len(expired) >= MAX_OPEN_TOKENS:
                raise RequestError(
                    f"{MAX_OPEN_TOKENS} join tokens are open already: use one, or let them expire"
                )
            await pki_records.add_token(self._link.client, record, expired)
        except StoreError as error:
            raise Unavailable(f"no token was made: etcd: {error}; ask again") from error
        log.info("join token made", id=token.token_id, ttl_seconds=ttl)
        return pki_pb2.CreateTokenResponse(token=token.text(), expires=record.expires)

    async def enroll(
        self, token_id: str, secret: str, host: str, address: str, request_pem: str
    ) -> tuple[str, str]:
        """Give a new host its certificate for a token: certificate and the CA's key, in PEM.

        Everything is checked before the token is spent. Raises RequestError.
        """
        self._must_be_secure()
        key, authority, identity = (
            self._key_of(request_pem),
            self._trust.load_authority(),
            Identity(Role.HOST, host),
        )
        try:
            pki.checked_name(host)
            literal = canonical_address(address)
        except (PkiError, AddressError) as error:
            raise InvalidRequest(str(error)) from error
        try:
            await self._spend(token_id, _decoded(secret), identity)
        except StoreError as error:
            raise Unavailable(
                f"join token {token_id[:12]} can't be used: etcd: {error}; try again"
            ) from error
        certificate = pki.issue(authority, key, identity, self._now(), addresses=[literal])
        await self._register(identity, certificate)
        log.info("host enrolled", host=host, address=literal, by=token_id)
        return pki.to_pem(certificate).decode(), pki.key_pem(authority.key).decode()

    async def prove(self, token_id: str, secret: str) -> None:
        """Raise RequestError unless this is an open token; it stays open."""
        self._must_be_secure()
        try:
            await self._open_token(token_id, _decoded(secret))
        except StoreError as error:
            raise Unavailable(
                f"join token {token_id[:12]} can't be looked up: etcd: {error}; try again"
            ) from error

    async def overview(self) -> pki_pb2.GetPkiResponse:
        """The CA, the names and the open tokens. Raises RequestError."""
        self._must_be_secure()
        ca_pem = self._trust.load().ca_pem
        authority = pki.load_certificate(ca_pem)
        moment = self._now().timestamp()
        try:
            names = await pki_records.read_names(self._link.client)
            tokens = await pki_records.read_tokens(self._link.client)
        except StoreError as error:
            raise Unavailable(f"etcd does not answer: {error}") from error
        return pki_pb2.GetPkiResponse(
            ca_pem=ca_pem.decode(),
            ca_fingerprint=pki.fingerprint(authority),
            ca_expires=authority.not_valid_after_utc.timestamp(),
            certificates=[
                pki_pb2.IssuedCertificate(
                    role=n.role,
                    name=n.name,
                    serial=n.serial,
                    expires=n.expires,
                    issued_by=n.issued_by,
                    revoked=n.revoked,
                )
                for n in names
            ],
            tokens=[
                pki_pb2.OpenToken(token_id=token.token_id, expires=token.expires)
                for token in tokens
                if token.expires > moment
            ],
        )

    def _must_be_secure(self) -> None:
        if not self._trust.secure:
            raise RequestError(NOT_SECURE)

    def _key_of(self, request_pem: str) -> pki.PublicKey:
        try:
            return pki.requested_key(request_pem.encode())
        except PkiError as error:
            raise InvalidRequest(str(error)) from error

    async def _sign(self, identity: Identity, request_pem: str, days: int) -> pki.Certificate:
        self._must_be_secure()
        key, authority = self._key_of(request_pem), self._trust.load_authority()
        try:
            certificate = pki.issue(authority, key, identity, self._now(), days)
        except PkiError as error:
            raise InvalidRequest(str(error)) from error
        await self._register(identity, certificate)
        log.info("certificate issued", role=str(identity.role), name=identity.name, days=days)
        return certificate

    async def _register(self, identity: Identity, certificate: pki.Certificate) -> None:
        """Note the certificate, and make its name a user of etcd where it needs one."""
        wanted = self._name(identity, certificate)
        try:
            holder = await pki_records.claim_name(self._link.client, wanted)
            if holder == wanted and identity.role in _ETCD_ROLES:
                await add_user(self._link.client, identity.name, _ETCD_ROLES[identity.role])
        except StoreError as error:
            raise Unavailable(f"no certificate for {identity}: etcd: {error}; ask again") from error
        _check_role(holder, identity)

    async def _spend(self, token_id: str, secret: bytes, identity: Identity) -> None:
        """Take the token away, if it is a good one and the name is free. Raises RequestError, StoreError."""
        client = self._link.client
        token = await self._open_token(token_id, secret)
        holder = await pki_records.read_name(client, identity.name)
        if holder is not None:
            _check_role(holder, identity)
        if not await pki_records.take_token(client, token):
            raise Denied(
                "the join token was used by another host just now: make another with clustercli pki token"
            )

    async def _open_token(self, token_id: str, secret: bytes) -> TokenRecord:
        """The token with this secret. Raises RequestError, StoreError."""
        token = await pki_records.find_token(self._link.client, token_id, secret)
        if token is None:
            raise Denied(
                "the join token is not known: it is good for one host only, or it was not copied whole; make "
                "another with clustercli pki token"
            )
        if token.expires <= self._now().timestamp():
            raise Denied("the join token has expired: make another with clustercli pki token")
        return token

    def _name(self, identity: Identity, certificate: pki.Certificate) -> NameRecord:
        return NameRecord(
            identity.name,
            identity.role.value,
            f"{certificate.serial_number:x}",
            certificate.not_valid_after_utc.timestamp(),
            self._settings.host,
        )


async def _check_is_out(client: EtcdClient, host: str) -> None:
    """Refuse a host that is in the cluster. Raises RequestError, StoreError."""
    record = await read_host(client, host)
    if record is not None and record.enabled:
        raise InvalidRequest(f"{host} is a host of the cluster: take it out by remove_node -n {host} first")


def _check_role(holder: NameRecord, identity: Identity) -> None:
    if holder.revoked:
        raise RequestError(f"the name {identity.name} was revoked: choose another name")
    if holder.role != identity.role:
        raise RequestError(
            f"the name {identity.name} belongs to a certificate of role {holder.role}, and etcd knows who "
            f"calls by the name alone: choose another name for this {identity.role}"
        )


def _decoded(secret: str) -> bytes:
    try:
        return base64.b64decode(secret, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("the secret of the join token is not base64") from error
