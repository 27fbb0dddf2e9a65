"""The committed vectors are what the model computes, and a second implementation agrees with them."""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from controlplane.model.hashing import fmix
from tools.vectors.routing import routing_vectors

ROOT = Path(__file__).resolve().parents[2]
VECTORS: dict[str, Any] = json.loads((ROOT / "tests/vectors/routing.json").read_text(encoding="utf-8"))


def test_the_committed_file_is_what_the_tool_writes() -> None:
    assert routing_vectors() == VECTORS


@pytest.mark.parametrize("row", VECTORS["plans"], ids=lambda row: row["fingerprint"])
def test_fingerprints_follow_the_written_layout(row: dict[str, Any]) -> None:
    text = b"akv-plan-1\0" + struct.pack("<II", VECTORS["layout_version"], row["num_dbs"])
    for slot in row["slots"]:
        name = slot["serial"].encode()
        text += struct.pack("<BH", slot["slot"], len(name)) + name
    assert blake2b(text, digest_size=16).hexdigest()[:16] == row["fingerprint"]


def test_no_pair_in_a_plan_would_rather_be_together() -> None:
    """Stability, checked from the weights in the file alone."""
    weights = {(row["serial"], row["slot"]): int(row["value"], 16) for row in VECTORS["slot_weight"]}
    for plan in VECTORS["plans"]:
        held = {row["slot"]: row["serial"] for row in plan["slots"]}
        for own, serial in held.items():
            for slot in range(8):
                rival = held.get(slot)
                wanted = weights[serial, slot] > weights[serial, own]
                welcome = rival is None or weights[serial, slot] > weights[rival, slot]
                assert not (wanted and welcome)


def test_published_constants_of_splitmix64() -> None:
    """splitmix64 seeded with 0 gives 0xe220a8397b1dcdaf first: its finalizer over the golden ratio."""
    assert fmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
