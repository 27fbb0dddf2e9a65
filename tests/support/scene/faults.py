"""Faults for the random run: each does its harm on its own choice of victim and says what may come of it.

`Scene.heal` undoes all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.support.scene.gateway import Gateway
from tests.support.scene.scene import Scene
from tests.support.scene.storage import StorageHost

Harm = Callable[[Scene, random.Random], "Fault"]


@dataclass(frozen=True)
class Fault:
    """What was done, and what it excuses.

    `may_lose`: by gateway, the cards that it may stop to use; no other card may leave any gateway.
    `members_down`: hosts whose part in the quorum is harmed. `blind`: gateways that may not be able to read
    the cluster; `cut`: those that may not when something else happens too. `reset`: gateways whose dataplane
    begins anew, so that everything leaves and comes back. `pings_lost`: hosts lost pings, and will tell of it
    for as long as their window is, also when the fault is over.
    """

    name: str
    may_lose: Mapping[str, frozenset[str]] = field(default_factory=dict)
    members_down: frozenset[str] = frozenset()
    blind: frozenset[str] = frozenset()
    reset: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()
    pings_lost: bool = False

    def and_(self, other: Fault) -> Fault:
        """Both at once."""
        names = {*self.may_lose, *other.may_lose}
        return Fault(
            f"{self.name}; {other.name}",
            {n: self.may_lose.get(n, frozenset()) | other.may_lose.get(n, frozenset()) for n in names},
            self.members_down | other.members_down,
            self.blind | other.blind | self.cut | other.cut,
            self.reset | other.reset,
            pings_lost=self.pings_lost or other.pings_lost,
        )


def _host(scene: Scene, chance: random.Random) -> StorageHost:
    return chance.choice(scene.members)


def _everywhere(scene: Scene, host: StorageHost) -> dict[str, frozenset[str]]:
    return {gateway.name: frozenset(host.specs) for gateway in scene.gateways}


def etcd_killed(scene: Scene, chance: random.Random) -> Fault:
    """Its service starts it again."""
    host = _host(scene, chance)
    host.kill_etcd()
    return Fault(f"etcd of {host.name} killed", members_down=frozenset({host.name}))


def etcd_suspended(scene: Scene, chance: random.Random) -> Fault:
    """It keeps its connections."""
    host = _host(scene, chance)
    host.suspend(host.wait_etcd())
    return Fault(f"etcd of {host.name} suspended", members_down=frozenset({host.name}))


def etcd_data_lost(scene: Scene, chance: random.Random) -> Fault:
    """The member has to be replaced."""
    host = _host(scene, chance)
    host.lose_disk()
    return Fault(f"etcd data of {host.name} lost", members_down=frozenset({host.name}))


def quorum_suspended(scene: Scene, chance: random.Random) -> Fault:
    """Two of three members at once."""
    hosts = chance.sample(scene.members, 2)
    for host in hosts:
        host.suspend(host.wait_etcd())
    names = sorted(host.name for host in hosts)
    return Fault(f"etcd of {' and '.join(names)} suspended", members_down=frozenset(names))


def service_killed(scene: Scene, chance: random.Random) -> Fault:
    """With its etcd."""
    host = _host(scene, chance)
    assert host.service is not None
    host.service.kill()
    return Fault(f"service of {host.name} killed", members_down=frozenset({host.name}))


def service_stopped(scene: Scene, chance: random.Random) -> Fault:
    """Cleanly: a leader gives its lease back."""
    host = _host(scene, chance)
    assert host.service is not None
    host.service.stop()
    return Fault(f"service of {host.name} stopped", members_down=frozenset({host.name}))


def service_suspended(scene: Scene, chance: random.Random) -> Fault:
    """Its etcd goes on."""
    host = _host(scene, chance)
    assert host.service is not None
    host.suspend(host.service.pid)
    return Fault(f"service of {host.name} suspended")


def leader_suspended_with_etcd(scene: Scene, chance: random.Random) -> Fault:
    """The worst place for it."""
    host = scene.leader()
    assert host.service is not None
    host.suspend(host.service.pid, host.wait_etcd())
    return Fault(f"leader {host.name} suspended with its etcd", members_down=frozenset({host.name}))


def exporter_killed(scene: Scene, chance: random.Random) -> Fault:
    """Of one host, or of all."""
    hosts = scene.members if chance.random() < 0.3 else [_host(scene, chance)]
    for host in hosts:
        assert host.exporter is not None
        host.exporter.kill()
    return Fault(f"exporters of {', '.join(host.name for host in hosts)} killed")


def prometheus_harmed(scene: Scene, chance: random.Random) -> Fault:
    """Suspended or killed, on one host or on all of a monitored scene."""
    hosts = scene.watched() if chance.random() < 0.5 else [chance.choice(scene.watched())]
    kill = chance.random() < 0.5
    for host in hosts:
        assert host.prometheus is not None
        if kill:
            host.prometheus.kill()
        else:
            host.suspend(host.prometheus.pid)
    done = "killed" if kill else "suspended"
    return Fault(f"Prometheus of {', '.join(host.name for host in hosts)} {done}")


def card_cli_broken(scene: Scene, chance: random.Random) -> Fault:
    """It hangs, fails, prints garbage or nothing: unknown, never "no cards"."""
    host = _host(scene, chance)
    script = chance.choice(["exec sleep 30", "exit 1", "echo '{\"cards\": 7}'", "true", "echo '{}'"])
    host.set_cli(script)
    return Fault(f"card CLI of {host.name} is {script!r}")


def hosts_cut(scene: Scene, chance: random.Random) -> Fault:
    """One host from the other hosts, in both directions or in one; gateways reach everyone.

    Where hosts ping each other the pings get through: that nobody reaches its data address would be evidence
    about its card.
    """
    host = _host(scene, chance)
    way = chance.choice(["both ways", "outgoing", "incoming"])
    for other in scene.members:
        if other is not host and way != "incoming":
            scene.network.cut_one_way(host.net, other.net, control_only=scene.monitored)
        if other is not host and way != "outgoing":
            scene.network.cut_one_way(other.net, host.net, control_only=scene.monitored)
    return Fault(f"{host.name} cut from the other hosts, {way}", members_down=frozenset({host.name}))


def gateway_cut_from_control(scene: Scene, chance: random.Random) -> Fault:
    """One gateway from the control path of some hosts, or of all."""
    gateway = chance.choice(scene.gateways)
    hosts = chance.sample(scene.members, chance.randint(1, len(scene.members)))
    for host in hosts:
        scene.network.cut(host.net, gateway.net, control_only=True)
    names = ", ".join(sorted(host.name for host in hosts))
    blind = frozenset({gateway.name} if len(hosts) == len(scene.members) else ())
    return Fault(
        f"{gateway.name} cut from the control path of {names}", blind=blind, cut=frozenset({gateway.name})
    )


def gateway_control_killed(scene: Scene, chance: random.Random) -> Fault:
    """The dataplane goes on alone."""
    gateway = chance.choice(scene.gateways)
    assert gateway.control is not None
    gateway.control.kill()
    return Fault(f"control process of {gateway.name} killed", blind=frozenset({gateway.name}))


def dataplane_killed(scene: Scene, chance: random.Random) -> Fault:
    """The clients of one gateway miss until it is back."""
    gateway = chance.choice(scene.gateways)
    assert gateway.dataplane is not None
    gateway.dataplane.kill()
    return Fault(f"dataplane of {gateway.name} killed", reset=frozenset({gateway.name}))


def card_killed(scene: Scene, chance: random.Random) -> Fault:
    """Its file survives."""
    host = _host(scene, chance)
    serial = chance.choice(sorted(host.cards))
    host.cards[serial].kill()
    return Fault(f"card {serial} killed", _everywhere(scene, host))


def card_suspended(scene: Scene, chance: random.Random) -> Fault:
    """It answers nothing and closes nothing."""
    host = _host(scene, chance)
    serial = chance.choice(sorted(host.cards))
    host.suspend(host.cards[serial].pid)
    return Fault(f"card {serial} suspended", _everywhere(scene, host))


def card_slow(scene: Scene, chance: random.Random) -> Fault:
    """It stands still again and again, each time for less than a deadline: busy is not dead."""
    host = _host(scene, chance)
    serial = chance.choice(sorted(host.cards))
    host.slow_down(host.cards[serial].pid)
    return Fault(f"card {serial} slow")


def card_sick(scene: Scene, chance: random.Random) -> Fault:
    """By its exporter; it serves on."""
    host = _host(scene, chance)
    serial = chance.choice(sorted(host.cards))
    host.tell_sick(serial)
    return Fault(f"card {serial} sick by its exporter", _everywhere(scene, host))


def card_unlisted(scene: Scene, chance: random.Random) -> Fault:
    """The card CLI answers without it."""
    host = _host(scene, chance)
    serial = chance.choice(sorted(host.cards))
    host.tell_nothing_of(serial)
    return Fault(f"card {serial} not listed", _everywhere(scene, host))


def host_lost(scene: Scene, chance: random.Random) -> Fault:
    """All its processes at once."""
    host = _host(scene, chance)
    host.kill_all()
    return Fault(f"{host.name} without power", _everywhere(scene, host), frozenset({host.name}))


def host_isolated(scene: Scene, chance: random.Random) -> Fault:
    """No packet comes or goes."""
    host = _host(scene, chance)
    scene.network.isolate(host.net)
    down = frozenset({host.name})
    return Fault(f"{host.name} isolated", _everywhere(scene, host), down, pings_lost=scene.monitored)


def card_cut_from_gateway(scene: Scene, chance: random.Random) -> Fault:
    """One gateway alone can't reach one host, cards included."""
    host, gateway = _host(scene, chance), chance.choice(scene.gateways)
    scene.network.cut(host.net, gateway.net)
    lost = {gateway.name: frozenset(host.specs)}
    return Fault(f"{gateway.name} cut from {host.name}", lost, cut=frozenset({gateway.name}))


def clock_jumped(scene: Scene, chance: random.Random) -> Fault:
    """The wall clock of one host's service or of one gateway pod, by an hour or by more than a certificate's
    time: then new connections of that one fail.
    """
    hours = chance.choice([-1, 1, -400 * 24, 400 * 24])
    victims: list[StorageHost | Gateway] = [*scene.members, *scene.gateways]
    victim = chance.choice(victims)
    victim.clock.set(hours * 3600.0)
    name = f"clock of {victim.name} jumped by {hours} h"
    if isinstance(victim, StorageHost):
        return Fault(name, members_down=frozenset({victim.name}))
    return Fault(name, blind=frozenset({victim.name}))


HARMS: tuple[Harm, ...] = (
    clock_jumped,
    etcd_killed,
    etcd_suspended,
    etcd_data_lost,
    quorum_suspended,
    service_killed,
    service_stopped,
    service_suspended,
    leader_suspended_with_etcd,
    exporter_killed,
    prometheus_harmed,
    card_cli_broken,
    hosts_cut,
    gateway_cut_from_control,
    gateway_control_killed,
    dataplane_killed,
    card_killed,
    card_suspended,
    card_slow,
    card_sick,
    card_unlisted,
    host_lost,
    host_isolated,
    card_cut_from_gateway,
)

# Those that can come on top of another one, whatever that has left running.
ALSO: tuple[Harm, ...] = (
    clock_jumped,
    exporter_killed,
    card_cli_broken,
    hosts_cut,
    gateway_cut_from_control,
    gateway_control_killed,
    card_killed,
    card_cut_from_gateway,
)
