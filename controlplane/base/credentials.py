"""A program's certificate, key and CA as files: `ca.pem`, `cert.pem`, and `key.pem` of mode 0600."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from controlplane.base.pki import (
    Identity,
    NotValidNow,
    PkiError,
    check_validity,
    identity_of,
    key_pem,
    load_authority_certificate,
    load_certificate,
    load_key,
    needs_renewal,
    to_pem,
    utc_now,
)
from controlplane.base.text_file import NotReadableError, read_bounded

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
MAX_BYTES = 1 << 16

T = TypeVar("T")
WallClock = Callable[[], datetime]


class CredentialsError(Exception):
    """A file that can't be used: which, why, and what to do. Never shows what is in it."""


class CredentialsNotNow(CredentialsError):
    """Files that are good but for the time: a right clock, or a renewal, makes them usable."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Checked credentials: who we are, our certificate and key, and whom we trust, in PEM."""

    identity: Identity
    certificate: x509.Certificate
    ca_pem: bytes
    certificate_pem: bytes
    key_pem: bytes

    def renewal_due(self, now: datetime) -> bool:
        """Whether less than a third of the certificate's time is left."""
        return needs_renewal(self.certificate, now)


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where a program's credentials are. They may be replaced while it runs: read them when needed."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: Path) -> CredentialFiles:
        """The three files under their usual names."""
        return cls(directory / CA_FILE, directory / CERTIFICATE_FILE, directory / KEY_FILE)

    def exist(self) -> bool:
        """Whether all three are there."""
        return all(path.exists() for path in (self.ca, self.certificate, self.key))

    def load(self, now: WallClock = utc_now, *, expired_too: bool = False) -> Credentials:
        """Read and check all three: valid now, of one CA, belonging together. Raises CredentialsError.

        With `expired_too` a certificate that has expired is read as well: for who can have it renewed.
        """
        moment = now()
        ca_pem = _read(self.ca)
        authority = _checked(self.ca, lambda: load_authority_certificate(ca_pem, moment))
        certificate_pem = _read(self.certificate)
        certificate = _checked(self.certificate, lambda: load_certificate(certificate_pem))
        identity = _checked(self.certificate, lambda: identity_of(certificate_pem))
        if not expired_too:
            _checked(self.certificate, lambda: check_validity(certificate, moment))
        _check_issuer(self.certificate, certificate, self.ca, authority)
        private = read_private(self.key)
        key = _checked(self.key, lambda: load_key(private))
        if key.public_key() != certificate.public_key():
            raise CredentialsError(
                f"{self.key} is not the key of {self.certificate}: name the two that were issued together"
            )
        return Credentials(identity, certificate, to_pem(authority), to_pem(certificate), key_pem(key))


def read_private(path: Path) -> bytes:
    """Read a file that only its owner may read. Raises CredentialsError."""
    data = _read(path)
    mode = path.stat().st_mode
    if mode & 0o077:
        raise CredentialsError(f"{path} is open to others (mode {mode & 0o777:o}); chmod 600 it")
    return data


def write_file(path: Path, data: bytes, *, private: bool) -> None:
    """Replace the file at once, so that a reader finds the old one or the new one; 0600 or 0644. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if not private:
            os.fchmod(file.fileno(), 0o644)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_credentials(files: CredentialFiles, ca_pem: bytes, certificate_pem: bytes, key: bytes) -> None:
    """Write all three: the certificate last, since a program that starts looks for all of them. OSError."""
    write_file(files.ca, ca_pem, private=False)
    write_file(files.key, key, private=True)
    write_file(files.certificate, certificate_pem, private=False)


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_BYTES)
    except NotReadableError as error:
        raise CredentialsError(f"{path} {error}") from error
    except OSError as error:
        raise CredentialsError(f"{path} can't be read: {error.strerror}") from error


def _checked(path: Path, check: Callable[[], T]) -> T:
    try:
        return check()
    except NotValidNow as error:
        raise CredentialsNotNow(f"{path}: {error}") from error
    except PkiError as error:
        raise CredentialsError(f"{path}: {error}") from error


def _check_issuer(path: Path, certificate: x509.Certificate, ca: Path, authority: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise CredentialsError(
            f"{path} was not issued by the CA in {ca}: name files of one cluster"
        ) from error
