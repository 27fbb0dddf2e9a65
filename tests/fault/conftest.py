"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scene.scene import Scene, three_hosts


@pytest.fixture(scope="module")
def shared_scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three storage hosts and two gateways for a module; use `scene`, in which all is well.

    A module with MONITORED = True has a Prometheus and a ping exporter on each host, one with SECURE = True
    certificates on every connection of the control path; HOST_SETTINGS are more settings of awide-cluster.
    """
    monitored, secure = (bool(getattr(request.module, name, False)) for name in ("MONITORED", "SECURE"))
    settings: dict[str, str] = getattr(request.module, "HOST_SETTINGS", {})
    directory = tmp_path_factory.mktemp("scene")
    with three_hosts(directory, monitored=monitored, secure=secure, settings=settings) as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Scene:
    """All is well at the start of each test, also after one that failed half-way."""
    shared_scene.heal()
    return shared_scene
