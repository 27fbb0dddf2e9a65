"""Weights that come over HTTP: in whole, resumed, verified, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.agent.weights import fetch as fetch_module
from controlplane.agent.weights.cache import WeightCache
from controlplane.agent.weights.fetch import FetchError, fetch, parse_source
from tests.support.weights_store import DATA, Store, digest, weights_store


@pytest.fixture
def store() -> Iterator[Store]:
    with weights_store() as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "FIRST_RETRY", 0.01)


async def test_a_file_comes_whole_with_progress(store: Store, tmp_path: Path) -> None:
    source = parse_source(store.url + digest(), tmp_path)
    told: list[tuple[int, int]] = []
    await fetch(source, lambda done, total: told.append((done, total)))
    assert source.path.read_bytes() == DATA
    assert told[-1] == (len(DATA), len(DATA))
    assert [path.name for path in source.path.parent.iterdir()] == ["tiny.gguf"]


async def test_a_connection_that_breaks_is_taken_up_where_it_was(store: Store, tmp_path: Path) -> None:
    store.breaks = 2
    source = parse_source(store.url + digest(), tmp_path)
    await fetch(source, lambda done, total: None)
    assert source.path.read_bytes() == DATA
    assert store.ranges[0] is None
    assert store.ranges[-1] not in {None, "bytes=0-"}


async def test_without_a_digest_no_mixture_can_come(store: Store, tmp_path: Path) -> None:
    store.breaks = 1
    source = parse_source(store.url, tmp_path)
    await fetch(source, lambda done, total: None)
    assert source.path.read_bytes() == DATA
    assert store.ranges == [None, None]


async def test_what_was_whole_but_not_in_place_yet(store: Store, tmp_path: Path) -> None:
    source = parse_source(store.url + digest(), tmp_path)
    source.path.parent.mkdir()
    source.partial.write_bytes(DATA)
    await fetch(source, lambda done, total: None)
    assert source.path.read_bytes() == DATA


async def test_another_content_is_refused_and_not_kept(store: Store, tmp_path: Path) -> None:
    source = parse_source(store.url + digest(b"other"), tmp_path)
    with pytest.raises(FetchError, match="SHA-256"):
        await fetch(source, lambda done, total: None)
    assert list(source.path.parent.iterdir()) == []


async def test_a_server_that_refuses(store: Store, tmp_path: Path) -> None:
    store.status = 404
    with pytest.raises(FetchError, match="HTTP status 404"):
        await fetch(parse_source(store.url, tmp_path), lambda done, total: None)
    assert len(store.ranges) == 1


async def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "TRIES", 2)
    with pytest.raises(FetchError, match="2 times"):
        await fetch(parse_source("http://127.0.0.1:9/x.gguf", tmp_path), lambda done, total: None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("s3://b/x", "write a path, or https"),
        ("file:///etc/passwd", "write a path, or https"),
        ("http://10.0.0.1/x.gguf", "use https"),
        ("https://host/", "end in no file name"),
        ("https://host/..%2f..%2fetc", "end in no file name"),
        ("https://host/.hidden", "end in no file name"),
        ("https://host/x#sha256=12", "64 hexadecimal digits"),
    ],
)
def test_sources_that_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=reason):
        parse_source(text, tmp_path)


async def test_the_cache_fetches_once_and_then_has_it(store: Store, tmp_path: Path) -> None:
    changes: list[int] = []
    cache = WeightCache([(tmp_path, False)], Path("/proc"), lambda: changes.append(1))
    path, source = cache.place(store.url + digest())
    assert source is not None
    await cache.fetch(source, lambda done, total: None)
    await cache.fetch(source, lambda done, total: None)
    assert (len(store.ranges), len(changes)) == (1, 1)
    assert cache.place(store.url + digest()) == (path, None)
    assert cache.place(path) == (path, None)
