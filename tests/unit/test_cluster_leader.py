"""What the leader says of a cycle that was broken off: what was done before is not said to be undone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.cluster.leader import Leader
from controlplane.cluster.settings import load_settings
from controlplane.model.cards import ClusterSnapshot, HostRecord
from controlplane.store.errors import StoreUnavailable


class Health:
    """Has written something, or could not."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    async def run(self, *_: Any) -> str:
        if self.fails:
            raise StoreUnavailable("no health")
        return "1 cards: 1 sick, changed: L0P0 is sick"


def leader_of(tmp_path: Path, *, health_fails: bool = False, away: bool = False) -> Leader:
    """A leader whose etcd is asked for members in vain."""
    picture = ClusterSnapshot(7, None, (), (HostRecord("h1", True, False, {}),), (), (), (), ())

    async def snapshot(_membership: Any) -> ClusterSnapshot:
        if away:
            raise StoreUnavailable("no picture")
        return picture

    class Client:
        def __getattr__(self, name: str) -> Any:
            raise StoreUnavailable("no members")

    environment = {"AWC_HOST": "h1", "AWC_SECURITY": "insecure-loopback"}
    parts: list[Any] = [
        SimpleNamespace(membership=SimpleNamespace(has_run=True, phase="member")),
        SimpleNamespace(snapshot=snapshot, client=Client()),
        Health(health_fails),
        SimpleNamespace(note=lambda *_: None),
        None,
    ]
    leader = Leader(load_settings(tmp_path, environment), *parts)
    leader._leadership = SimpleNamespace(lease=SimpleNamespace(lost=False))  # type: ignore[assignment]
    leader._cycles_led = 9
    return leader


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        ({}, "leading: 1 cards: 1 sick, changed: L0P0 is sick; broken off: no members"),
        ({"health_fails": True}, "leading; broken off: no health"),
        ({"away": True}, "nothing done: no picture"),
    ],
)
async def test_a_cycle_that_is_broken_off_says_how_far_it_came(
    tmp_path: Path, faults: dict[str, bool], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await leader_of(tmp_path, **faults).cycle()
    assert sentence in capsys.readouterr().out


async def test_a_follower_tells_an_outage_once_whatever_its_details(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looks every second, and each time another member may have given no answer."""
    leader = leader_of(tmp_path)
    leader._leadership = None
    details = iter(["h1 is silent", "h2 is silent", "h1 refuses", None, "h3 is silent"])
    following: Any = leader

    async def cycle() -> str:
        detail = next(details)
        if detail is None:
            return "following h2"
        raise StoreUnavailable(detail)

    following._cycle = cycle
    for _ in range(5):
        await leader.cycle()
    told = [line for line in capsys.readouterr().out.splitlines() if "says=" in line]
    assert [any(word in line for line in told) for word in ("h1 is", "following", "h3 is")] == [True] * 3
    assert len(told) == 3, told
