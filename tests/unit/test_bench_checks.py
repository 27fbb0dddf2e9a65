"""What is compared while caches are measured: no block passes for another one, or for none."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import pytest

from bench.figures.hot import Hot
from bench.payload import Payloads
from bench.peers.clients.base import Cache
from bench.peers.worker import Worker

SIZE, BATCH, ROUNDS = 4096, 3, 4


class FakeCache(Cache):
    """Values in a dict; `other` says whose value a get brings, None: nobody's."""

    def __init__(self) -> None:
        super().__init__(mmap.mmap(-1, SIZE * BATCH))
        self.values: dict[str, bytes] = {}

    def other(self, round_number: int, place: int) -> tuple[int, int] | None:
        return round_number, place

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        for key, offset in zip(keys, offsets, strict=True):
            self.values[key] = self.memory[offset : offset + size]

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        for key, offset in zip(keys, offsets, strict=True):
            case, *where = map(int, key.split("/"))
            if (found := self.other(*where)) is not None:
                self.memory[offset : offset + size] = self.values["/".join(map(str, (case, *found)))]

    def exists(self, keys: Sequence[str]) -> int:
        return len(self.values.keys() & set(keys))

    def clear(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.values[key]


class OtherRound(FakeCache):
    def other(self, round_number: int, place: int) -> tuple[int, int]:
        return round_number ^ 1, place


class OtherPlace(FakeCache):
    def other(self, round_number: int, place: int) -> tuple[int, int]:
        return round_number, BATCH - 1 - place


class FirstRound(FakeCache):
    """The first round brings the second one."""

    def other(self, round_number: int, place: int) -> tuple[int, int]:
        return max(round_number, 1), place


class Idle(FakeCache):
    def other(self, round_number: int, place: int) -> None:
        return None


@pytest.fixture(params=["put", "get"])
def op(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _wrong(cache: Cache, op: str, rounds: int = ROUNDS) -> int:
    worker = Worker(cache)
    worker.prepare({"op": op, "size": SIZE, "batch": BATCH, "rounds": rounds})
    ran = worker.run()
    assert ran["blocks"] == rounds * BATCH
    assert ran["seconds"] > 0
    return int(worker.finish()["wrong"])


def test_a_cache_that_brings_what_was_put_is_not_wrong(op: str) -> None:
    cache = FakeCache()
    assert _wrong(cache, op) == 0
    assert cache.values == {}


@pytest.mark.parametrize(
    ("cache", "wrong"),
    [
        (OtherRound(), ROUNDS * BATCH),
        (OtherPlace(), ROUNDS * (BATCH - 1)),
        (FirstRound(), BATCH),
        (Idle(), ROUNDS * BATCH),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Cache) else str(value),
)
def test_blocks_of_other_rounds_or_places_or_no_blocks_are_wrong(cache: Cache, wrong: int, op: str) -> None:
    assert _wrong(cache, op) == wrong


def test_a_get_that_brings_nothing_is_wrong_in_a_single_round_too(op: str) -> None:
    assert _wrong(Idle(), op, rounds=1) == BATCH


@pytest.fixture
def hot() -> Hot:
    return Hot([bytes([number]) * 32 for number in range(BATCH)], Payloads(SIZE))


def _stored(hot: Hot) -> list[memoryview]:
    views = [memoryview(bytearray(SIZE)) for _ in hot.keys]
    for key, view in zip(hot.keys, views, strict=True):
        hot.payloads.fill(key, view)
    return views


def test_hot_blocks_are_compared_with_what_was_stored_under_their_keys(hot: Hot) -> None:
    views = _stored(hot)
    hot.check(hot.keys, views)
    assert hot.batches(2) == [hot.keys[:2], hot.keys[2:]]
    never_filled = memoryview(bytes(SIZE))
    for others in (views[::-1], [views[0], never_filled, views[2]], [*views[:2], None]):
        with pytest.raises(ValueError, match="not what was stored"):
            hot.check(hot.keys, others)
