"""The head of etcd's log: recorded bytes give the ids, and no bytes at all break the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.etcd_wal import MemberIds, WalError, data_ids, has_data, parse_ids


def frame(record: bytes) -> bytes:
    padding = -len(record) % 8
    head = len(record) | ((0x80 | padding) << 56 if padding else 0)
    return head.to_bytes(8, "little") + record + b"\0" * padding


CRC = frame(bytes([0x08, 4, 0x10, 0, 0x1A, 0]))
IDS = bytes([0x08, 0x96, 0x01, 0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01])
METADATA = frame(bytes([0x08, 1, 0x10, 0x85, 0x02, 0x1A, len(IDS)]) + IDS)


def test_ids_come_out_of_the_metadata_record() -> None:
    assert parse_ids(CRC + METADATA + b"\xee" * 50) == MemberIds(150, 2**64 - 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_ids_or_a_wal_error(head: bytes) -> None:
    for text in (head, CRC + head, (CRC + METADATA)[: len(head)]):
        try:
            parse_ids(text)
        except WalError:
            continue


def test_unreadable_data_are_data_without_known_ids(tmp_path: Path) -> None:
    assert not has_data(tmp_path)
    assert data_ids(tmp_path) is None
    wal = tmp_path / "member" / "wal"
    wal.mkdir(parents=True)
    (wal / "0000000000000000-0000000000000000.wal").write_bytes(b"torn")
    assert has_data(tmp_path)
    assert data_ids(tmp_path) is None
    with pytest.raises(WalError):
        parse_ids(b"torn")
