"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.support.addresses import LoopbackNet
from tests.support.etcd import EtcdCluster, run_etcd

# The same examples in every run, so that a change is refused for what it does only; `make properties` looks
# for new ones. How long an example takes says more about the machine's load than about the code.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=300)
settings.load_profile("repeatable")

# Containers often forbid Python to keep what it compiled. The tests start hundreds of programs, and to
# compile a program's modules anew is a quarter of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts what it puts into the background with SIGINT ignored, and every process of a test would
# inherit that: interrupts are tests' subjects.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Their hosts, gateways and replays take half a core all the while: more than two at once would slow each
# other down. "Harder" takes as long as the other files together.
_SCENES = "tests/fault/test_table_"
_HARDER = f"{_SCENES}harder.py"
_LONGEST = (_SCENES, *(f"tests/integration/test_{name}" for name in ("packaging", "install_page", "demo")))


class _TwoScenesAtATime(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A worker takes the tests of a file, and two of them take all files with scenes."""

    def _split_scope(self, nodeid: str) -> str:
        other = nodeid.startswith(_SCENES) and not nodeid.startswith(_HARDER)
        return _SCENES if other else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _TwoScenesAtATime:
    """How `-n` shares the tests out."""
    return _TwoScenesAtATime(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: nothing is left to do beside it at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.fixture
def loopback_net() -> LoopbackNet:
    """A random 127.x.y.0/24 of this test's own."""
    return LoopbackNet.pick()


@pytest.fixture
def agent_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for an agent whose state is in `state` there; what it left running is ended after the test."""
    from tests.support.shards import end_all  # noqa: PLC0415 - of the agent's tests alone

    yield tmp_path
    end_all(tmp_path / "state" / "shards")


@pytest.fixture(params=["python", "native"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the client's implementations: what `connect` makes here and in child processes."""
    name: str = request.param
    monkeypatch.setenv("AKV_CLIENT_IMPLEMENTATION", name)
    return name


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One etcd member for the whole run; use `etcd` instead, which is empty at the start of each test."""
    with run_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def etcd(shared_etcd: EtcdCluster) -> EtcdCluster:
    """A one-member etcd with no keys. Don't harm it: it is shared."""
    shared_etcd.wipe()
    return shared_etcd


@pytest.fixture
def etcd_cluster(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[EtcdCluster]:
    """A fresh cluster of three members for this test alone, to be harmed at will."""
    with run_etcd(tmp_path / "etcd", 3, loopback_net) as cluster:
        yield cluster
