"""What must hold for every gateway while something of the control path is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.support.procs import ARRIVED
from tests.support.scene.gateway import Gateway
from tests.support.scene.scene import Scene
from tests.support.scene.storage import StorageHost
from tests.support.scene.traffic import Traffic

OUT, IN = "Cluster card out of service", "Cluster card in service"
STALE, AGAIN = "Cluster stale", "Cluster answered again"
MOVED = "Cluster slot plan changed"
# What a process may still finish after another has taken over.
GRACE_SECONDS = 3.0
_HARM = (OUT, MOVED, "Cluster card forgotten")


class LogMark:
    """What each gateway logs from now on."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._seen = {gateway.name: len(gateway.events()) for gateway in scene.gateways}

    def events(self, gateway: Gateway, *names: str) -> list[dict[str, Any]]:
        """New events of these names."""
        new = gateway.events()[self._seen[gateway.name] :]
        return [event for event in new if event.get("event") in names]

    def wait_all(self, name: str, serial: str = "") -> list[dict[str, Any]]:
        """Until every gateway has logged the event (of that card); the first of each."""

        def first(gateway: Gateway) -> dict[str, Any] | None:
            events = self.events(gateway, name)
            return next((event for event in events if not serial or event.get("serial") == serial), None)

        what = f"every gateway logs {name!r} {serial}".rstrip()
        return [self._scene.wait(partial(first, gateway), what) for gateway in self._scene.gateways]

    def assert_none(self, *names: str) -> None:
        """No gateway has logged one of these since."""
        for gateway in self._scene.gateways:
            assert not self.events(gateway, *names), gateway.name


@contextmanager
def nothing_changes(scene: Scene, traffic: Traffic) -> Iterator[LogMark]:
    """No card leaves any gateway's routing, no slot moves, and every request hits in full."""
    plan, mark = scene.wait_same_plan(), LogMark(scene)
    with traffic.undisturbed():
        yield mark
        assert scene.use(scene.serials), scene.describe()
    mark.assert_none(*_HARM)
    assert {gateway.fingerprint() for gateway in scene.gateways} == {plan}


def is_stale(gateway: Gateway) -> bool:
    """The status file says that the cluster does not answer."""
    return gateway.status().get(("xkv_gateway_cluster_answered", "")) == 0.0


def active_in_status(gateway: Gateway) -> set[str]:
    """Cards in use by the status file."""
    name = "xkv_gateway_storage_group_active"
    return {label for (metric, label), value in gateway.status().items() if metric == name and value == 1.0}


def logged_at(event: dict[str, Any]) -> float:
    """When a log line came, Unix seconds by the test's clock."""
    return float(event[ARRIVED])


def assert_one_writer(scene: Scene, since: float = 0.0) -> None:
    """Once a newer leader was elected, the older one writes nothing and does not say that it leads.

    It may finish what it was about when it was suspended: from its resuming on it has a moment to find out.
    `since`: what was logged before that moment (Unix seconds) was judged already.
    """
    elected: list[tuple[float, str]] = []
    for host in scene.members:
        elected += [(logged_at(event), host.name) for event in host.logged("leadership won")]
    elected.sort()
    for host in scene.members:
        for event in host.logged("health", "cycle"):
            now = logged_at(event)
            if now >= since and _says_that_it_leads(event):
                _assert_leader(host, elected, event, now)


def _says_that_it_leads(event: dict[str, Any]) -> bool:
    return event["event"] == "health" or str(event["says"]).startswith("leading")


def _assert_leader(
    host: StorageHost, elected: list[tuple[float, str]], event: dict[str, Any], now: float
) -> None:
    settled = [(at, name) for at, name in elected if at < now - GRACE_SECONDS]
    since, leader = settled[-1] if settled else (0.0, host.name)
    resumed = any(0 <= now - at <= GRACE_SECONDS for at in host.resumed_at)
    assert leader == host.name or resumed or _won_since(elected, host.name, since, now), (
        f"{host.name} says {event} while {leader} leads"
    )


def _won_since(elected: list[tuple[float, str]], name: str, since: float, now: float) -> bool:
    return any(since <= at <= now and winner == name for at, winner in elected)
