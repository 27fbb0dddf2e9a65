"""The committed vectors of protocol and envelope are what the tool writes; other implementations agree."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from controlplane.model.keys import card_key
from tools.vectors.conversations import protocol_vectors
from tools.vectors.envelope import crc32c, envelope_vectors

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / f"tests/vectors/{name}.json").read_text(encoding="utf-8"))
    return content


def test_the_committed_files_are_what_the_tool_writes() -> None:
    assert load("envelope") == json.loads(json.dumps(envelope_vectors()))
    assert load("protocol") == json.loads(json.dumps(protocol_vectors()))


def test_the_tool_knows_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_model_derives_the_same_card_keys() -> None:
    for row in load("envelope")["values"]:
        key, secret = bytes.fromhex(row["engine_key"]), bytes.fromhex(row["secret"])
        assert card_key(row["namespace"], key, row["num_dbs"], secret).hex() == row["segments"][0]["card_key"]


def test_namespace_ids_are_in_the_envelopes() -> None:
    for row in load("envelope")["values"]:
        wanted = blake2b(b"akv-ns-1\0" + row["namespace"].encode(), digest_size=16).digest()[:4]
        assert all(bytes.fromhex(part["envelope"])[12:16] == wanted for part in row["segments"])
