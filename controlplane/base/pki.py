"""The cluster's own certificate authority: identities, certificates and what is checked of them.

Every certificate names one identity, a role and a name: the name is the subject's common name (etcd's user),
and `akv://ROLE/NAME` is the one URI among the alternative names. One that says two things, or lacks either,
is nobody's. Keys are EC P-256. Pure functions: time is an argument, files are in credentials.py.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
CERTIFICATE_DAYS = 365
MAX_DAYS = 825
# A host whose clock is a little behind takes a new certificate all the same.
CLOCK_SKEW = timedelta(minutes=5)
# What clients of a cluster host ask its certificate for. It is in the certificates of hosts only, so that a
# host may be called by any address, and no gateway, agent or administrator can stand in for one.
HOST_DNS_NAME = "cluster-host.akv.internal"
# The one more name that etcd's client port takes: it is in gateways' certificates only.
GATEWAY_DNS_NAME = "cluster-gateway.akv.internal"
# Names that nobody is given a certificate for: etcd's own administrator, who exists because etcd wants it to,
# and root at a host's socket, who can't be revoked and stands in the records as `admin local`.
RESERVED_NAMES = frozenset({"root", "local"})

_SCHEME = "akv"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", re.ASCII)


Certificate = x509.Certificate
PublicKey = ec.EllipticCurvePublicKey
PrivateKey = ec.EllipticCurvePrivateKey


class PkiError(Exception):
    """A certificate, key or name that can't be used: what is wrong, and what to do."""


class NotValidNow(PkiError):
    """A certificate whose time is over or has not come, by the clock of this machine."""


class Role(StrEnum):
    """What a certificate's owner may do."""

    ADMIN = "admin"
    HOST = "host"
    GATEWAY = "gateway"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a verified certificate belongs to."""

    role: Role
    name: str

    @property
    def uri(self) -> str:
        """`akv://ROLE/NAME`."""
        return f"{_SCHEME}://{self.role}/{self.name}"

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


@dataclass(frozen=True, slots=True)
class Authority:
    """The cluster's CA with its key: whoever has it can make any identity."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The CA's certificate, which everyone may have."""
        return to_pem(self.certificate)


def checked_name(name: str) -> str:
    """`name`, if it can be in a certificate. Raises PkiError."""
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise PkiError(
            f"{name[:80]!r} can't be the name in a certificate: use 1 to 64 letters, digits, '.', '-' and "
            f"'_', and not {', '.join(sorted(RESERVED_NAMES))}"
        )
    return name


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key in PKCS #8, not encrypted: it is read by programs that start alone."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def to_pem(certificate: x509.Certificate) -> bytes:
    """The certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a private key. Raises PkiError."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise PkiError("not a private key in PEM without a passphrase") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError("a private key of another kind than EC: have it issued anew")
    return key


def load_certificate(pem: bytes) -> x509.Certificate:
    """Read exactly one certificate. Raises PkiError."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise PkiError("not a certificate in PEM") from error
    if len(certificates) != 1:
        raise PkiError(f"{len(certificates)} certificates where one is expected")
    return certificates[0]


def load_authority_certificate(pem: bytes, now: datetime) -> x509.Certificate:
    """Read the certificate that is to be trusted. Raises PkiError.

    TLS libraries take any certificate as a root of trust, a peer's own too: then that peer alone, and
    nobody else of the cluster, would be believed. So only a CA is taken.
    """
    certificate = load_certificate(pem)
    if not _is_authority(certificate):
        raise PkiError(
            f"the certificate of {certificate.subject.rfc4514_string()!r} is not that of a CA: name the "
            "cluster's CA (ca.pem), not the certificate of one of its hosts"
        )
    check_validity(certificate, now)
    return certificate


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(certificate)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature):
        return False
    return constraints.ca


def check_validity(certificate: x509.Certificate, now: datetime) -> None:
    """Refuse a certificate that is not valid at `now`. Raises PkiError."""
    end, begin = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if now > end:
        raise NotValidNow(f"expired at {end:%Y-%m-%d %H:%M:%SZ}: have it issued anew (clustercli pki issue)")
    if now < begin:
        raise NotValidNow(f"not valid before {begin:%Y-%m-%d %H:%M:%SZ}: is the clock of this machine right?")


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, 64 hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def create_authority(cluster_name: str, cluster_uuid: str, now: datetime) -> Authority:
    """Make the CA of a new cluster, valid for CA_DAYS."""
    key = new_key()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster_uuid),
            x509.NameAttribute(NameOID.COMMON_NAME, f"CA of {cluster_name}"[:64]),
        ]
    )
    builder = _builder(subject, subject, key.public_key(), now, now + timedelta(days=CA_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def load_authority(certificate: bytes, key: bytes, now: datetime) -> Authority:
    """Put certificate and key of a CA together. Raises PkiError."""
    authority = Authority(load_authority_certificate(certificate, now), load_key(key))
    if authority.certificate.public_key() != authority.key.public_key():
        raise PkiError("the CA's key does not belong to the CA's certificate")
    return authority


def make_request(key: ec.EllipticCurvePrivateKey, identity: Identity) -> bytes:
    """The request of `identity` in PEM: its public key, signed by its private key, which stays here."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(identity))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def requested_key(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a request, proven to be its sender's. Nothing else of it counts. Raises PkiError."""
    try:
        request = x509.load_pem_x509_csr(request_pem)
        proven = request.is_signature_valid
        key = request.public_key()
    except (ValueError, TypeError) as error:
        raise PkiError("not a certificate request in PEM") from error
    if not proven:
        raise PkiError("a certificate request whose signature is not by its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PkiError("a certificate request for another kind of key than EC P-256")
    return key


def issue(
    authority: Authority,
    key: ec.EllipticCurvePublicKey,
    identity: Identity,
    now: datetime,
    days: int = CERTIFICATE_DAYS,
    addresses: Sequence[str] = (),
) -> x509.Certificate:
    """A certificate of `identity` for `key`; never longer valid than the CA. Raises PkiError.

    `addresses` are the IP addresses of a host, which etcd's members check of each other.
    """
    checked_name(identity.name)
    if not 1 <= days <= MAX_DAYS:
        raise PkiError(f"a certificate for {days} days: choose 1 to {MAX_DAYS}")
    check_validity(authority.certificate, now)
    end = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    builder = _builder(_subject(identity), authority.certificate.subject, key, now, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(_purposes(identity.role), critical=False)
    builder = builder.add_extension(_alternative_names(identity, addresses), critical=False)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(authority_key, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def addresses_of(certificate: x509.Certificate) -> frozenset[str]:
    """The IP addresses that a certificate is for, in canonical spelling."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return frozenset(str(address) for address in names.get_values_for_type(x509.IPAddress))


@lru_cache(maxsize=1024)
def identity_of(pem: bytes) -> Identity:
    """Whose certificate this is, once TLS has verified who issued it. Raises PkiError."""
    certificate = load_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    common = [
        attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ]
    if len(uris) != 1 or len(common) != 1:
        raise PkiError(
            f"a certificate with {len(common)} common names and {len(uris)} {_SCHEME}://ROLE/NAME where one "
            "of each is expected: have it issued by clustercli pki issue"
        )
    identity = _identity(uris[0])
    if identity.name != common[0]:
        raise PkiError(f"a certificate of {common[0]!r} that also says to be {uris[0]!r}")
    return identity


def needs_renewal(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether less than a third of its time is left."""
    end, begin = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    return now > end - (end - begin) / 3


def utc_now() -> datetime:
    """The wall clock, which certificates are judged by."""
    return datetime.now(UTC)


def _identity(uri: str) -> Identity:
    scheme, _, rest = uri.partition("://")
    role, _, name = rest.partition("/")
    if scheme != _SCHEME or role not in set(Role) or not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise PkiError(f"a certificate of {uri[:120]!r}, which is no {_SCHEME}://ROLE/NAME")
    return Identity(Role(role), name)


def _subject(identity: Identity) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.role.value),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.name),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
    )


def _purposes(role: Role) -> x509.ExtendedKeyUsage:
    """Only hosts are servers; etcd's members are clients of each other too."""
    client = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, *client] if role is Role.HOST else client)


def _alternative_names(identity: Identity, addresses: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if identity.role is Role.GATEWAY:
        names.append(x509.DNSName(GATEWAY_DNS_NAME))
    if identity.role is Role.HOST:
        names.append(x509.DNSName(HOST_DNS_NAME))
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in dict.fromkeys(addresses)]
    elif addresses:
        raise PkiError(f"addresses in the certificate of a {identity.role}: only hosts are called")
    return x509.SubjectAlternativeName(names)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
