"""How long it takes from a fault to the gateways' routing, and back: the cases of docs/operations.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tests.support.scene.checks import AGAIN, STALE, LogMark
from tests.support.scene.scene import Scene
from tests.support.scene.storage import CardSpec, StorageHost

WAIT_SECONDS = 120.0
VICTIM_HOST, VICTIM = "storage-2", "L1P0"


@dataclass(frozen=True)
class Reading:
    """One measured time, seconds."""

    what: str
    seconds: float


Case = Callable[[Scene], Iterator[Reading]]


def _timed(scene: Scene, what: str, act: Callable[[], object], reached: Callable[[], object]) -> Reading:
    began = time.monotonic()
    act()
    scene.wait(reached, what, WAIT_SECONDS, every=0.01)
    return Reading(what, time.monotonic() - began)


def _in_use(scene: Scene, serials: set[str]) -> Callable[[], bool]:
    return lambda: scene.use(serials)


def card_killed_and_back(scene: Scene) -> Iterator[Reading]:
    """The connection breaks; the dataplane sees it before the cluster does."""
    host, rest = scene.hosts[VICTIM_HOST], scene.serials - {VICTIM}
    spec = host.specs[VICTIM]
    yield _timed(scene, "card killed: out of use", host.cards[VICTIM].kill, _in_use(scene, rest))
    scene.wait_health({VICTIM: 1})
    scene.wait(lambda: all(VICTIM not in gateway.routed() for gateway in scene.gateways), "out of the plan")
    back = _in_use(scene, scene.serials)
    yield _timed(scene, "card back: in use", lambda: host.start_card(spec), back)


def card_suspended(scene: Scene) -> Iterator[Reading]:
    """Nothing is closed: deadlines tell, under load."""
    host, rest = scene.hosts[VICTIM_HOST], scene.serials - {VICTIM}
    with scene.traffic() as traffic:
        began = time.monotonic()
        host.suspend(host.cards[VICTIM].pid)
        traffic.pump(_in_use(scene, rest), WAIT_SECONDS, "the card is out of use")
        yield Reading("card hangs, under load: out of use", time.monotonic() - began)


def card_sick(scene: Scene) -> Iterator[Reading]:
    """By its exporter, while it serves."""
    host, rest = scene.hosts[VICTIM_HOST], scene.serials - {VICTIM}
    tell, out = partial(host.tell_sick, VICTIM), _in_use(scene, rest)
    yield _timed(scene, "card sick by its exporter: out of use", tell, out)
    back = _in_use(scene, scene.serials)
    yield _timed(scene, "card healthy again: in use", host.tell_the_truth, back)


@contextmanager
def _guest(scene: Scene) -> Iterator[StorageHost]:
    """A fourth host; afterwards the cluster has forgotten it and its cards."""
    host = scene.hosts.get("storage-4") or scene.add_host("storage-4")
    yield host
    scene.members.remove(host)
    scene.console.cli(scene.members[0], "remove_node", "-n", host.name, "--forget-cards").document()
    host.remove_cards()


def new_card(scene: Scene) -> Iterator[Reading]:
    """A card that the cluster never had, on a host that it has."""
    with _guest(scene) as host:
        scene.join(host)
        spec = CardSpec("L3P0")
        expected = _in_use(scene, scene.serials | {spec.serial})
        yield _timed(scene, "new card: in use", lambda: host.start_card(spec), expected)


def host_added(scene: Scene) -> Iterator[Reading]:
    """`clustercli add_node` on a host with a card."""
    with _guest(scene) as host:
        host.start_card(CardSpec("L3P0"))
        expected = _in_use(scene, scene.serials | set(host.specs))
        yield _timed(scene, "host added: its card in use", lambda: scene.join(host), expected)


def leader_lost(scene: Scene) -> Iterator[Reading]:
    """Service and etcd of the leader's host are killed."""
    old = scene.leader()
    assert old.service is not None
    asked = next(host for host in scene.members if host is not old)

    def another() -> bool:
        return _leader(scene, asked) not in {"", old.name}

    yield _timed(scene, "leader killed: another leads", old.service.kill, another)


def member_replaced(scene: Scene) -> Iterator[Reading]:
    """etcd's data are removed under a running member."""
    host, asked = scene.hosts[VICTIM_HOST], scene.hosts["storage-1"]
    before = _voters(scene, asked)[host.name]

    def replaced() -> bool:
        now = _voters(scene, asked).get(host.name, before)
        return now != before and scene.console.etcd_is_well(host)

    yield _timed(scene, "member's data lost: replaced and voting", host.lose_disk, replaced)


def quorum_lost_and_back(scene: Scene) -> Iterator[Reading]:
    """Two of three hosts' services and etcd are killed, and started again."""
    gone, mark = scene.members[1:], LogMark(scene)

    def kill() -> None:
        for host in gone:
            assert host.service is not None
            host.service.kill()

    def start() -> None:
        for host in gone:
            host.start()

    yield _timed(scene, "quorum lost: gateways log Cluster stale", kill, _logged(scene, mark, STALE))
    yield _timed(scene, "quorum back: they log Cluster answered again", start, _logged(scene, mark, AGAIN))


def _logged(scene: Scene, mark: LogMark, name: str) -> Callable[[], bool]:
    return lambda: all(mark.events(gateway, name) for gateway in scene.gateways)


def _leader(scene: Scene, asked: StorageHost) -> str:
    document = scene.console.cluster(asked)
    return str(document["leader"]) if document else ""


def _voters(scene: Scene, asked: StorageHost) -> dict[str, str]:
    """Member ids of the voters that have started, by host."""
    document = scene.console.members(asked)
    members = document["members"] if document else []
    return {m["host"]: m["member_id"] for m in members if m["started"] and not m["learner"]}


CASES: tuple[Case, ...] = (
    card_killed_and_back,
    card_suspended,
    card_sick,
    new_card,
    host_added,
    leader_lost,
    member_replaced,
    quorum_lost_and_back,
)
