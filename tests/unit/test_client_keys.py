"""Keys and dialog ids."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest

from integration.client import default_affinity, dialog_id, engine_key


def _named(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=16).digest()[:8], "little")


def test_a_key_of_32_bytes_is_itself_and_others_are_hashed() -> None:
    own = bytes(range(32))
    assert engine_key(own) == own
    assert engine_key(memoryview(own)) == own
    assert engine_key(b"x") == blake2b(b"x", digest_size=32).digest()
    assert engine_key(own + b"x") == blake2b(own + b"x", digest_size=32).digest()
    with pytest.raises(ValueError, match="empty"):
        engine_key(b"")


@pytest.mark.parametrize("name", [5, 32, 1 << 62, "text", None, [1, 2]])
def test_a_key_that_is_no_buffer_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"a block's key is .*: give the engine's block hash as bytes"):
        engine_key(name)


@pytest.mark.parametrize(("block_tokens", "index"), [(512, 1), (16, 63), (1024, 0), (2048, 0), (256, 3)])
def test_the_default_affinity_is_the_block_that_ends_1024_tokens(block_tokens: int, index: int) -> None:
    assert default_affinity(block_tokens) == index


@pytest.mark.parametrize(
    ("count", "affinity", "full", "index"),
    [
        (10, None, None, 1),
        (10, 0, None, 0),
        (10, 4, None, 4),
        (3, 5, None, 2),
        (3, 5, 2, 1),
        (2, None, 1, 0),
        (1, None, 0, 0),
    ],
)
def test_a_dialog_is_named_by_its_block_at_the_affinity_or_its_last_full_block(
    count: int, affinity: int | None, full: int | None, index: int
) -> None:
    keys = [bytes([i]) * 32 for i in range(count)]
    assert dialog_id(keys, 512, affinity, full) == _named(keys[index])


def test_requests_that_share_the_named_block_share_the_dialog() -> None:
    head = [b"head", b"second"]
    assert dialog_id([*head, b"a", b"b"], 512) == dialog_id([*head, b"c"], 512)
    assert dialog_id([*head, b"a"], 512) != dialog_id([b"head", b"other", b"a"], 512)


@pytest.mark.parametrize(
    ("keys", "tokens", "affinity", "full"),
    [([], 512, None, None), ([b"a"], 0, None, None), ([b"a"], 512, -1, None), ([b"a"], 512, None, 2)],
)
def test_what_can_not_be_right_is_refused(
    keys: list[bytes], tokens: int, affinity: int | None, full: int | None
) -> None:
    with pytest.raises(ValueError, match=r"dialog|block_tokens|affinity_blocks"):
        dialog_id(keys, tokens, affinity, full)
