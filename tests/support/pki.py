"""A cluster CA of a test's own, and credentials from it: right ones, and wrong ones of every kind."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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

    _issued: dict[tuple[pki.Role, str], CredentialFiles] = field(default_factory=dict)

    def once(self, role: pki.Role, name: str) -> CredentialFiles:
        """Credentials of an identity, issued when they are first asked for."""
        if (role, name) not in self._issued:
            self._issued[role, name] = self.issue(role, name)
        return self._issued[role, name]

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

    def odd(
        self,
        key: ec.EllipticCurvePublicKey,
        identity: pki.Identity,
        *,
        common_name: bool = True,
        begin: timedelta = timedelta(minutes=-5),
        end: timedelta = timedelta(days=1),
    ) -> bytes:
        """A certificate of this CA, in PEM, that the product itself would not issue; times from now."""
        names = [x509.NameAttribute(NameOID.COMMON_NAME, identity.name)] if common_name else []
        uri = x509.UniformResourceIdentifier(identity.uri)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(names))
            .issuer_name(self.authority.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_now() + begin)
            .not_valid_after(_now() + end)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=not common_name)
        )
        return pki.to_pem(builder.sign(self.authority.key, hashes.SHA256()))


@functools.cache
def run_authority() -> TestAuthority:
    """The CA of this test run, for tests that need certificates and are about something else."""
    folder = tempfile.mkdtemp(prefix="akv-pki-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return TestAuthority(Path(folder))


def _now() -> datetime:
    return pki.utc_now()
