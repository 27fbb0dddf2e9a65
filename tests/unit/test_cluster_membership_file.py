"""The membership file: what is saved comes back; a damaged one is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from controlplane.cluster.membership_file import (
    FILE_NAME,
    Membership,
    MembershipFile,
    MembershipFileError,
    PeerHost,
)

MEMBERSHIP = Membership(
    "member",
    "h1",
    "http://127.0.0.1:2380",
    "5f0c",
    "kv-cache",
    "h1=http://127.0.0.1:2380",
    0xFEDCBA9876543210,
    0xABCDEF,
    (PeerHost("h2", "[::1]:5000", "http://[::1]:2379"),),
)


def test_a_saved_membership_comes_back_and_is_private(tmp_path: Path) -> None:
    file = MembershipFile(tmp_path / "state")
    assert file.load() is None
    file.save(MEMBERSHIP)
    assert file.load() == MEMBERSHIP
    assert stat.S_IMODE((tmp_path / "state" / FILE_NAME).stat().st_mode) == 0o600
    file.remove()
    assert file.load() is None


def test_every_torn_prefix_is_refused(tmp_path: Path) -> None:
    file = MembershipFile(tmp_path)
    file.save(MEMBERSHIP)
    whole = (tmp_path / FILE_NAME).read_bytes().rstrip()
    for length in range(len(whole)):
        (tmp_path / FILE_NAME).write_bytes(whole[:length])
        with pytest.raises(MembershipFileError, match=FILE_NAME):
            file.load()


@pytest.mark.parametrize(
    "change",
    [('"version": 2', '"version": 3'), ('"member"', '"retired"'), ('"5f0c"', '""'), ('"peers"', '"friends"')],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    file = MembershipFile(tmp_path)
    file.save(MEMBERSHIP)
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(MembershipFileError):
        file.load()
