"""Traces: reading them, making them, and what unlimited cards would answer."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.dialogs import block_key, request_of
from bench.generate import TraceGenerator, write_trace
from bench.histogram import Histogram
from bench.payload import Payloads
from bench.simulate import UnlimitedCards
from bench.statistics import measure
from bench.trace import TraceError, TraceRow, locate_trace, read_trace
from controlplane.model.routing import affinity_index
from controlplane.model.routing import dialog_id as model_dialog_id

GOOD = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}


def _write(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def test_rows_are_read_from_start_for_limit(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", *[GOOD | {"timestamp": i} for i in range(5)])
    assert [row.timestamp for row in read_trace(path)] == [0, 1, 2, 3, 4]
    assert [row.timestamp for row in read_trace(path, start=1, limit=2)] == [1, 2]
    assert next(read_trace(path)).full_blocks(512) == 2


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ("\x00\x1b", "not JSON"),
        (GOOD | {"timestamp": -1}, "timestamp is -1"),
        (GOOD | {"timestamp": True}, "timestamp is True"),
        (GOOD | {"input_length": "7"}, "input_length is '7'"),
        (GOOD | {"output_length": None}, "output_length is None"),
        (GOOD | {"hash_ids": []}, "at least one block"),
        (GOOD | {"hash_ids": [1, "x", 2]}, "'x'"),
        (GOOD | {"hash_ids": [1 << 64]}, "64-bit"),
        (GOOD | {"hash_ids": [1, 2, 3, 4]}, "fills only 3"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path, record: Any, reason: str) -> None:
    path = _write(tmp_path / "t.jsonl", GOOD, record)
    with pytest.raises(TraceError, match=r"t\.jsonl:2: ") as caught:
        list(read_trace(path))
    assert reason in str(caught.value)


def test_dialogs_are_those_of_the_model() -> None:
    row = TraceRow(0, 5 * 512 + 1, 0, (0, 7, 8, 9, 10, 11))
    request = request_of(row)
    assert request.affinity == affinity_index(512) == 1
    assert request.dialog == model_dialog_id(block_key(7))
    assert request_of(TraceRow(0, 513, 0, (0, 7))).dialog == model_dialog_id(block_key(0))


def test_unlimited_cards_answer_the_longest_prefix_of_their_own_blocks() -> None:
    cards = UnlimitedCards([0, 2, 5, 7])
    first = request_of(TraceRow(0, 2048, 0, (0, 1, 2, 3)))
    assert [cards.serve(first), cards.serve(first)] == [0, 4]
    longer = request_of(TraceRow(0, 2560, 0, (0, 1, 2, 9, 3)))
    assert cards.serve(longer) == 3
    others = [request_of(TraceRow(0, 2048, 0, (0, 100 + i, 200 + i))) for i in range(40)]
    assert {cards.serve(other) for other in others} == {0, 1}, "the shared head is stored once a card"
    with pytest.raises(ValueError, match="slots"):
        UnlimitedCards([8])


@pytest.mark.skipif(locate_trace() is None, reason="the published trace is not on this machine")
def test_the_published_trace_has_its_known_hit_ratios() -> None:
    path = locate_trace()
    assert path is not None
    one, four, blocks, hits = UnlimitedCards([0]), UnlimitedCards([0, 2, 5, 7]), 0, Counter[str]()
    for row in read_trace(path):
        request = request_of(row)
        blocks += len(request.keys)
        hits["one"] += one.serve(request)
        hits["four"] += four.serve(request)
    assert blocks == 288_500
    assert round(hits["one"] / blocks, 5) == 0.36641
    assert round(hits["four"] / blocks, 5) == 0.36640


def test_a_made_trace_is_like_the_published_one(tmp_path: Path) -> None:
    figures = measure(islice(TraceGenerator(1).rows(), 12_031))
    assert figures["distinct_first_blocks"] == 1
    assert figures["reuse"] == pytest.approx(0.366, abs=0.02)
    assert figures["blocks"] == pytest.approx(288_500, rel=0.05)
    assert figures["seconds"] == pytest.approx(3537, rel=0.05)
    sizes = figures["blocks_per_request"]
    assert [sizes[p] for p in ("p25", "p50", "p75", "p95")] == pytest.approx([5, 14, 31, 80], rel=0.1, abs=1)


def test_the_same_seed_makes_the_same_valid_file(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        with path.open("w") as out:
            write_trace(out, 300, seed)
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    rows = list(read_trace(paths[0]))
    assert len(rows) == 300
    assert all(len(row.hash_ids) == -(-row.input_length // 512) for row in rows)
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(rows))
    named: dict[int, tuple[int, ...]] = {}
    for row in rows:
        for index, block in enumerate(row.hash_ids):
            assert named.setdefault(block, row.hash_ids[:index]) == row.hash_ids[:index]


def test_payloads_differ_by_key_and_by_position() -> None:
    payloads = Payloads(4096)
    memory = memoryview(bytearray(4096))
    payloads.fill(b"a" * 32, memory)
    assert payloads.matches(b"a" * 32, memory)
    assert not payloads.matches(b"b" * 32, memory)
    shifted = memoryview(bytes(memory[64:]) + bytes(memory[:64]))
    assert not payloads.matches(b"a" * 32, shifted)
    for position in (0, 63, 64, 2000, 4095):
        memory[position] ^= 1
        assert not payloads.matches(b"a" * 32, memory)
        memory[position] ^= 1
    with pytest.raises(ValueError, match="at least 64"):
        Payloads(63)


def test_percentiles_are_within_two_percent() -> None:
    histogram = Histogram()
    assert histogram.percentile(50) is None
    for value in range(1, 1001):
        histogram.add(value / 1e6)
    assert histogram.percentile(50) == pytest.approx(500e-6, rel=0.021)
    assert histogram.percentile(99) == pytest.approx(990e-6, rel=0.021)
    histogram.add(1.0, 10_000)
    assert histogram.percentile(50) == pytest.approx(1.0, rel=0.021)
