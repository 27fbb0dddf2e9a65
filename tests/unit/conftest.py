"""Fixtures of the unit tests: a client at a small gateway of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.client import Client, connect
from tests.support.gateway import ReferenceGateway


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


@pytest.fixture
def gateway(path: Path) -> Iterator[ReferenceGateway]:
    with ReferenceGateway(path) as running:
        yield running


@pytest.fixture
def client(gateway: ReferenceGateway, path: Path) -> Iterator[Client]:
    with connect(socket=str(path), arena_bytes=1 << 20) as connected:
        yield connected


@pytest.fixture
def pool() -> Iterator[int]:
    """A memfd that can be a region."""
    descriptor = os.memfd_create("pool")
    os.truncate(descriptor, 1 << 16)
    yield descriptor
    os.close(descriptor)
