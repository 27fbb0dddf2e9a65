"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from controlplane.agent.shards import shard as shard_module
from controlplane.agent.shards import web
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FleetHost, leading
from tests.support.fleet_scene import plan_quickly
from tests.support.shards import end_all


@pytest_asyncio.fixture
async def host(etcd: EtcdCluster) -> AsyncIterator[FleetHost]:
    """A host that leads the fleet over this etcd, with mutual TLS."""
    async with leading(etcd) as leader:
        yield leader


@pytest.fixture
def quick_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts follow after fractions of a second."""
    plan_quickly(monkeypatch)


@pytest.fixture
def shard_root(tmp_path: Path) -> Iterator[Path]:
    """A supervisor's directory; what runs below it after the test is ended."""
    path = tmp_path / "shards"
    yield path
    end_all(path)


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are asked often whether they serve or are drained; what is asked is the same."""
    monkeypatch.setattr(web, "READY_POLL", 0.05)
    monkeypatch.setattr(shard_module, "DRAIN_POLL", 0.05)
