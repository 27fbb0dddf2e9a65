"""A cluster CA of a test's own, and credentials from it: right ones, and wrong ones of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.base import pki
from controlplane.base.credentials import CredentialFiles, write_credentials


@dataclass
class TestAuthority:
    """A CA that issues credentials into directories below `root`."""

    __test__ = False

    root: Path
    authority: pki.Authority = field(
        default_factory=lambda: pki.create_authority("test", "00000000-0000-4000-8000-000000000000", _now())
    )

    def issue(
        self,
        role: pki.Role,
        name: str,
        *,
        now: datetime | None = None,
        days: int = 30,
        addresses: Sequence[str] = (),
    ) -> CredentialFiles:
        """Credentials of an identity, as issued at `now`."""
        key = pki.new_key()
        certificate = pki.issue(
            self.authority, key.public_key(), pki.Identity(role, name), now or _now(), days, addresses
        )
        files = CredentialFiles.in_directory(self.root / f"{role}-{name}")
        write_credentials(files, self.authority.certificate_pem, pki.to_pem(certificate), pki.key_pem(key))
        return files

    def without_common_name(self, key: ec.EllipticCurvePublicKey, uri: str) -> bytes:
        """A certificate of this CA, in PEM, whose alternative names alone say who it is."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.authority.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_now() - timedelta(minutes=1))
            .not_valid_after(_now() + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
        )
        return pki.to_pem(builder.sign(self.authority.key, hashes.SHA256()))


def _now() -> datetime:
    return pki.utc_now()
