"""The committed vectors of protocol and envelope are what the tool writes; other implementations agree."""

from __future__ import annotations

import importlib.util
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from controlplane.model.keys import card_key

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / f"tests/vectors/{name}.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("vectors_tool", ROOT / "tools/make_gateway_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_files_are_what_the_tool_writes(tool: Any) -> None:
    assert load("envelope") == json.loads(json.dumps(tool.envelope_vectors()))
    assert load("protocol") == json.loads(json.dumps(tool.protocol_vectors()))


def test_the_tool_knows_crc32c(tool: Any) -> None:
    assert tool.crc32c(b"123456789") == 0xE3069283


def test_the_model_derives_the_same_card_keys() -> None:
    for row in load("envelope")["values"]:
        key, secret = bytes.fromhex(row["engine_key"]), bytes.fromhex(row["secret"])
        assert card_key(row["namespace"], key, row["num_dbs"], secret).hex() == row["segments"][0]["card_key"]


def test_namespace_ids_are_in_the_envelopes() -> None:
    for row in load("envelope")["values"]:
        wanted = blake2b(b"akv-ns-1\0" + row["namespace"].encode(), digest_size=16).digest()[:4]
        assert all(bytes.fromhex(part["envelope"])[12:16] == wanted for part in row["segments"])
