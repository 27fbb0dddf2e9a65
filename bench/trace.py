"""Traces of requests: JSON lines with timestamp, input_length, output_length and hash_ids, read one by
one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

# Tokens in one block of the published trace, and of the traces made here.
BLOCK_TOKENS = 512


class TraceError(ValueError):
    """A line of a trace that can't be used; says file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. `hash_ids` name its blocks, each by everything up to its end; the last one may be partly
    filled.

    `timestamp` is in milliseconds, lengths are in tokens.
    """

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    def full_blocks(self, block_tokens: int) -> int:
        """How many of the blocks are full."""
        return min(self.input_length // block_tokens, len(self.hash_ids))


def read_trace(
    path: Path, *, start: int = 0, limit: int | None = None, block_tokens: int = BLOCK_TOKENS
) -> Iterator[TraceRow]:
    """Yield rows `start` to `start + limit` of the file; raises TraceError at the first bad line, OSError."""
    stop = None if limit is None else start + limit
    # What is not UTF-8 comes out as text that is no JSON, and so with its line.
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in islice(enumerate(lines, start=1), start, stop):
            try:
                yield _row(line, block_tokens)
            except ValueError as error:
                raise TraceError(f"{path}:{number}: {error}") from error


def _row(line: str, block_tokens: int) -> TraceRow:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("not a row: it is nested too deeply") from error
    if not isinstance(record, dict):
        raise TraceError("not a JSON object")
    row = TraceRow(
        _number(record, "timestamp", 0),
        _number(record, "input_length", 1),
        _number(record, "output_length", 0),
        _hash_ids(record),
    )
    most = -(-row.input_length // block_tokens)
    if len(row.hash_ids) > most:
        raise ValueError(
            f"hash_ids has {len(row.hash_ids)} blocks, but input_length {row.input_length} fills only {most} "
            f"of {block_tokens} tokens"
        )
    return row


def _number(record: dict[str, Any], name: str, least: int) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of at least {least}")
    return value


def _hash_ids(record: dict[str, Any]) -> tuple[int, ...]:
    value = record.get("hash_ids")
    if not isinstance(value, list) or not value:
        raise ValueError(f"hash_ids is {value!r}: it must be a list with at least one block")
    for block in value:
        if not isinstance(block, int) or isinstance(block, bool) or not 0 <= block < 1 << 64:
            raise ValueError(f"hash_ids has {block!r}: a block is an unsigned 64-bit number")
    return tuple(value)


def locate_trace() -> Path | None:
    """The published conversation trace in a `shared` folder beside the repository, if there is one."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "traces" / "conversation_trace.jsonl"
    return beside if beside.is_file() else None
