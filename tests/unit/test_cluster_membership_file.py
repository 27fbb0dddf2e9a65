"""The membership file: what is saved comes back; a damaged one is refused."""

from __future__ import annotations

import stat
from dataclasses import replace
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


def test_a_torn_last_write_is_the_old_place_the_new_one_or_refused(tmp_path: Path) -> None:
    """The new bytes up to some point over the old file, or zeros behind it, as a failing disk leaves them."""
    file, path = MembershipFile(tmp_path), tmp_path / FILE_NAME
    new = replace(MEMBERSHIP, member_id=0x1234567812345678, peers=())
    file.save(new)
    after = path.read_bytes()
    file.save(MEMBERSHIP)
    before = path.read_bytes()
    for length in range(max(len(after), len(before)) + 1):
        for torn in (after[:length] + before[length:], after[:length].ljust(len(after), b"\0")):
            path.write_bytes(torn)
            try:
                assert file.load() in (new, MEMBERSHIP), length
            except MembershipFileError:
                continue


def test_a_write_that_was_cut_before_its_rename_leaves_the_old_place(tmp_path: Path) -> None:
    file = MembershipFile(tmp_path)
    file.save(MEMBERSHIP)
    (tmp_path / FILE_NAME).with_suffix(".tmp").write_text('{"version": 2, "pha')
    assert file.load() == MEMBERSHIP
    file.save(replace(MEMBERSHIP, member_id=7))
    assert file.load() == replace(MEMBERSHIP, member_id=7)


def test_a_file_that_can_not_be_written_leaves_the_old_place(tmp_path: Path) -> None:
    file = MembershipFile(tmp_path)
    file.save(MEMBERSHIP)
    (tmp_path / "member.tmp").mkdir()
    with pytest.raises(OSError, match=r"member\.tmp"):
        file.save(replace(MEMBERSHIP, member_id=7))
    assert file.load() == MEMBERSHIP


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
