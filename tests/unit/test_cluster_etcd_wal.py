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


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


CRC = frame(bytes([0x08, 4, 0x10, 0, 0x1A, 0]))
IDS = bytes([0x08, 0x96, 0x01, 0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01])
IDS_CRC = 0xED54541E  # of IDS, by ISA-L
METADATA = frame(bytes([0x08, 1, 0x10]) + varint(IDS_CRC) + bytes([0x1A, len(IDS)]) + IDS)


def test_ids_come_out_of_the_metadata_record() -> None:
    assert parse_ids(CRC + METADATA + b"\xee" * 50) == MemberIds(150, 2**64 - 1)


def test_no_torn_head_gives_other_ids() -> None:
    whole = CRC + METADATA
    zeros = bytes(len(whole))
    for length in range(len(whole)):
        for torn in (whole[:length], whole[:length] + zeros[length:]):
            try:
                assert parse_ids(torn) == MemberIds(150, 2**64 - 1)
            except WalError:
                continue


def test_a_later_file_of_the_log_goes_on_from_the_checksum_before() -> None:
    assert parse_ids(frame(bytes([0x08, 4, 0x10, 0])) + METADATA) == MemberIds(150, 2**64 - 1)
    with pytest.raises(WalError, match="checksum"):
        parse_ids(frame(bytes([0x08, 4, 0x10, 7])) + METADATA)


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
