"""Credential files: what is refused before any connection is tried, and with which words."""

from __future__ import annotations

import shutil
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.base.credentials import CredentialFiles, CredentialsError, write_file
from controlplane.base.pki import Identity, Role, utc_now
from tests.support.pki import TestAuthority


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path)


def test_what_was_written_is_read(authority: TestAuthority) -> None:
    files = authority.issue(Role.GATEWAY, "pod-1")
    assert files.exist()
    loaded = files.load()
    assert loaded.identity == Identity(Role.GATEWAY, "pod-1")
    assert not loaded.renewal_due(utc_now())
    assert loaded.renewal_due(utc_now() + timedelta(days=25))
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (files.ca, files.certificate, files.key)]
    assert modes == [0o644, 0o644, 0o600]


def test_a_key_that_others_can_read_is_refused(authority: TestAuthority) -> None:
    files = authority.issue(Role.GATEWAY, "pod-1")
    files.key.chmod(0o640)
    with pytest.raises(CredentialsError, match=r"key\.pem is open to others \(mode 640\); chmod 600 it"):
        files.load()


def test_expired_and_early(authority: TestAuthority) -> None:
    files = authority.issue(Role.GATEWAY, "pod-1", days=30)
    with pytest.raises(CredentialsError, match=r"cert\.pem: expired at .*issued anew"):
        files.load(lambda: utc_now() + timedelta(days=31))
    with pytest.raises(CredentialsError, match=r"ca\.pem: not valid before"):
        files.load(lambda: utc_now() - timedelta(days=1))


def test_files_that_do_not_belong_together(authority: TestAuthority, tmp_path: Path) -> None:
    ours = authority.issue(Role.HOST, "storage-1")
    peer = authority.issue(Role.HOST, "storage-2")
    other = TestAuthority(tmp_path / "other").issue(Role.HOST, "storage-1")
    with pytest.raises(CredentialsError, match=r"was not issued by the CA in"):
        CredentialFiles(other.ca, ours.certificate, ours.key).load()
    with pytest.raises(CredentialsError, match=r"key\.pem is not the key of"):
        CredentialFiles(ours.ca, ours.certificate, peer.key).load()
    with pytest.raises(CredentialsError, match=r"is not that of a CA: name the cluster's CA"):
        CredentialFiles(peer.certificate, ours.certificate, ours.key).load()
    peer.certificate.chmod(0o600)
    with pytest.raises(CredentialsError, match=r"cert\.pem: not a private key"):
        CredentialFiles(ours.ca, ours.certificate, peer.certificate).load()


def test_a_missing_or_endless_file(authority: TestAuthority, tmp_path: Path) -> None:
    ours = authority.issue(Role.HOST, "storage-1")
    with pytest.raises(CredentialsError, match="nowhere can't be read: No such file"):
        CredentialFiles(tmp_path / "nowhere", ours.certificate, ours.key).load()
    with pytest.raises(CredentialsError, match="is a pipe or a device"):
        CredentialFiles(Path("/dev/zero"), ours.certificate, ours.key).load()


def test_no_message_shows_a_key(authority: TestAuthority) -> None:
    files = authority.issue(Role.HOST, "storage-1")
    shutil.copy(files.key, files.certificate)
    with pytest.raises(CredentialsError) as caught:
        files.load()
    assert "PRIVATE KEY" not in str(caught.value)


def test_a_file_is_replaced_at_once_and_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.pem"
    write_file(path, b"one", private=True)
    path.chmod(0o644)
    write_file(path, b"two", private=True)
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["key.pem"]
