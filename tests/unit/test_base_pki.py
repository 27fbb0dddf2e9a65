"""The cluster's CA: what a certificate says, and every certificate that says something else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.base import pki
from controlplane.base.pki import Identity, PkiError, Role

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority() -> pki.Authority:
    return pki.create_authority("kv-cache", "4f8d0e1c-0000-4000-8000-000000000001", NOW)


def issue(authority: pki.Authority, role: Role, name: str, **more: object) -> x509.Certificate:
    return pki.issue(authority, pki.new_key().public_key(), Identity(role, name), NOW, **more)  # type: ignore[arg-type]


def odd_certificate(authority: pki.Authority, names: list[str], uris: list[str]) -> bytes:
    """A certificate of the right CA with these common names and URIs."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(pki.new_key().public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if uris:
        values = [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(values), critical=False)
    return pki.to_pem(builder.sign(authority.key, hashes.SHA256()))


@pytest.mark.parametrize("role", list(Role))
def test_a_certificate_says_role_and_name(authority: pki.Authority, role: Role) -> None:
    certificate = issue(authority, role, "rack-1.node_7")
    assert pki.identity_of(pki.to_pem(certificate)) == Identity(role, "rack-1.node_7")
    certificate.verify_directly_issued_by(authority.certificate)


def test_only_a_host_is_a_server(authority: pki.Authority) -> None:
    for role in Role:
        certificate = issue(authority, role, "name")
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        is_host = role is Role.HOST
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) is is_host
        assert (pki.HOST_DNS_NAME in names.get_values_for_type(x509.DNSName)) is is_host


def test_an_issued_certificate_is_no_authority(authority: pki.Authority) -> None:
    pem = pki.to_pem(issue(authority, Role.HOST, "storage-1"))
    with pytest.raises(PkiError, match=r"is not that of a CA: name the cluster's CA"):
        pki.load_authority_certificate(pem, NOW)


def test_addresses_of_a_host_in_every_spelling(authority: pki.Authority) -> None:
    certificate = issue(authority, Role.HOST, "h", addresses=["10.0.0.1", "fd00:0:0::1", "10.0.0.1"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "fd00::1"]
    with pytest.raises(PkiError, match="only hosts are called"):
        issue(authority, Role.GATEWAY, "g", addresses=["10.0.0.1"])


@pytest.mark.parametrize(
    ("names", "uris", "words"),
    [
        ([], ["akv://admin/eve"], "0 common names"),
        (["eve"], [], "0 akv://ROLE/NAME"),
        (["eve"], ["akv://admin/eve", "akv://host/eve"], "2 akv://ROLE/NAME"),
        (["eve", "adam"], ["akv://admin/eve"], "2 common names"),
        (["eve"], ["akv://admin/adam"], "'eve' that also says to be 'akv://admin/adam'"),
        (["eve"], ["akv://root/eve"], "no akv://ROLE/NAME"),
        (["eve"], ["https://admin/eve"], "no akv://ROLE/NAME"),
        (["root"], ["akv://admin/root"], "no akv://ROLE/NAME"),
        (["local"], ["akv://admin/local"], "no akv://ROLE/NAME"),
        (["e/v"], ["akv://admin/e/v"], "no akv://ROLE/NAME"),
    ],
)
def test_a_certificate_that_names_nobody_is_refused(
    authority: pki.Authority, names: list[str], uris: list[str], words: str
) -> None:
    with pytest.raises(PkiError, match=words):
        pki.identity_of(odd_certificate(authority, names, uris))


@pytest.mark.parametrize("name", ["", "root", "local", "a" * 65, "-a", "a b", "a/b", "ä", "a\0", "a\n"])
def test_names_that_no_certificate_gets(authority: pki.Authority, name: str) -> None:
    with pytest.raises(PkiError, match="can't be the name in a certificate"):
        issue(authority, Role.GATEWAY, name)


def test_validity(authority: pki.Authority) -> None:
    certificate = issue(authority, Role.AGENT, "gpu-1", days=30)
    pki.check_validity(certificate, NOW + timedelta(days=29))
    with pytest.raises(PkiError, match=r"expired at 2026-12-29 .*have it issued anew"):
        pki.check_validity(certificate, NOW + timedelta(days=31))
    with pytest.raises(PkiError, match=r"not valid before 2026-11-29 11:55.*clock"):
        pki.check_validity(certificate, NOW - timedelta(minutes=6))
    assert not pki.needs_renewal(certificate, NOW + timedelta(days=19))
    assert pki.needs_renewal(certificate, NOW + timedelta(days=21))


def test_nothing_outlives_its_authority(authority: pki.Authority) -> None:
    late = NOW + timedelta(days=pki.CA_DAYS - 10)
    key = pki.new_key().public_key()
    certificate = pki.issue(authority, key, Identity(Role.HOST, "h"), late)
    assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
    with pytest.raises(PkiError, match="expired"):
        pki.issue(authority, key, Identity(Role.HOST, "h"), NOW + timedelta(days=pki.CA_DAYS + 1))
    for days in (0, pki.MAX_DAYS + 1):
        with pytest.raises(PkiError, match=f"for {days} days"):
            issue(authority, Role.HOST, "h", days=days)


def test_a_request_proves_its_key_and_nothing_else() -> None:
    key = pki.new_key()
    request = pki.make_request(key, Identity(Role.ADMIN, "eve"))
    assert pki.requested_key(request) == key.public_key()
    with pytest.raises(PkiError, match="not a certificate request"):
        pki.requested_key(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    rsa_request = builder.sign(other, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(PkiError, match="another kind of key"):
        pki.requested_key(rsa_request)


def test_a_request_signed_by_another_key_is_refused() -> None:
    """The signature's bytes are exchanged for those of another key's request."""
    mine, theirs = (pki.make_request(pki.new_key(), Identity(Role.HOST, "h")) for _ in range(2))
    first, second = (x509.load_pem_x509_csr(pem) for pem in (mine, theirs))
    der = first.public_bytes(serialization.Encoding.DER)
    if len(first.signature) != len(second.signature):
        forged = der[:-1] + bytes([der[-1] ^ 1])
    else:
        forged = der.replace(first.signature, second.signature)
    pem = x509.load_der_x509_csr(forged).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(PkiError, match="not by its own key"):
        pki.requested_key(pem)


def test_an_authority_goes_through_files(authority: pki.Authority) -> None:
    again = pki.load_authority(authority.certificate_pem, pki.key_pem(authority.key), NOW)
    assert pki.fingerprint(again.certificate) == pki.fingerprint(authority.certificate)
    with pytest.raises(PkiError, match="does not belong"):
        pki.load_authority(authority.certificate_pem, pki.key_pem(pki.new_key()), NOW)
    curve = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(PkiError, match="does not belong"):
        pki.load_authority(authority.certificate_pem, pki.key_pem(curve), NOW)
    for pem in (b"", b"rubbish", authority.certificate_pem * 2):
        with pytest.raises(PkiError):
            pki.load_authority_certificate(pem, NOW)
