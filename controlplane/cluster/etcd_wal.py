"""Whose data lie in a directory: the ids in the head of etcd's log, read without starting etcd.

A member that is started on another member's data votes in that one's name and can cost a healthy cluster
its quorum before anyone can ask who it is. So the ids are compared before a start.

A log file is a row of frames: u64 little-endian (bits 0..55 the length of the record, bits 56..58 its
padding) and the record, a protobuf message (1: type, 2: crc, 3: data). The record of type 1 has the ids
(1: member, 2: cluster). A file begins with a record of type 4, whose crc is the CRC-32C of all records' data
before this file; that of each later record goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_METADATA, _CRC = 1, 4
_LENGTH_BITS = (1 << 56) - 1
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class MemberIds:
    """A member's own id and its cluster's."""

    member_id: int
    cluster_id: int


class WalError(ValueError):
    """Bytes that are not the beginning of a write-ahead log."""


def has_data(data_dir: Path) -> bool:
    """Whether the directory holds a member's write-ahead log; without it etcd starts as a stranger."""
    return bool(_files(data_dir))


def data_ids(data_dir: Path) -> MemberIds | None:
    """Return whose data these are; None when there are none, or none that can be read (etcd judges those)."""
    for path in _files(data_dir):
        try:
            with path.open("rb") as file:
                return parse_ids(file.read(_HEAD_BYTES))
        except (OSError, WalError):
            return None
    return None


def parse_ids(head: bytes) -> MemberIds:
    """Read the ids from the first bytes of a log file. Raises WalError."""
    crc = 0
    for record in _records(head):
        fields = _fields(record)
        if fields.get(1) == _CRC:
            crc = _number(fields.get(2))
        elif fields.get(1) == _METADATA:
            data = _bytes(fields.get(3))
            if _crc32c(data, crc) != _number(fields.get(2)):
                raise WalError("the ids do not have the checksum that was written with them")
            ids = _fields(data)
            return MemberIds(_number(ids.get(1)), _number(ids.get(2)))
    raise WalError("no metadata record")


def _files(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "member" / "wal").glob("*.wal"))


def _records(head: bytes) -> Iterator[bytes]:
    position = 0
    while position + 8 <= len(head):
        frame = int.from_bytes(head[position : position + 8], "little")
        length = frame & _LENGTH_BITS
        padding = (frame >> 56) & 7 if frame >> 63 else 0
        position += 8
        if not 0 < length <= len(head) - position:
            raise WalError("a record goes beyond the head of the file")
        yield head[position : position + length]
        position += length + padding


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Decode the varint and bytes fields of a protobuf message; others don't occur here."""
    fields: dict[int, int | bytes] = {}
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        value, position = _varint(message, position)
        if tag & 7 == 0:
            fields[tag >> 3] = value
        elif tag & 7 == 2 and value <= len(message) - position:
            fields[tag >> 3] = message[position : position + value]
            position += value
        else:
            raise WalError("a field of an unknown kind")
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise WalError("a number without an end")


def _bytes(value: int | bytes | None) -> bytes:
    if not isinstance(value, bytes):
        raise WalError("the metadata record has no data")
    return value


def _number(value: int | bytes | None) -> int:
    if not isinstance(value, int):
        raise WalError("an id is missing")
    return value


def _crc32c(data: bytes, crc: int) -> int:
    """CRC-32C that goes on from `crc`, bit by bit: it is asked for a few bytes, once a start."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
