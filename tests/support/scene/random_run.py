"""The random run: faults from a seeded generator, and what must hold after each of them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controlplane.apps.demo.errors import DemoError
from tests.support.scene.checks import GRACE_SECONDS, MOVED, OUT, LogMark, assert_one_writer, logged_at
from tests.support.scene.faults import ALSO, HARMS, Fault, Harm, prometheus_harmed
from tests.support.scene.gateway import Gateway
from tests.support.scene.scene import Scene
from tests.support.scene.traffic import Traffic
from tests.support.scene.watched import SCRAPE_SECONDS, WINDOW_SECONDS

# How long a fault stands: mostly a moment, sometimes longer than the leader's lease and a card's deadline.
SHORT_SECONDS, LONG_SECONDS, LONG_SHARE = (0.3, 2.0), (5.5, 7.0), 0.2
VERDICTS_TOLD = 16
# Prometheus shows what it scraped last: a scrape, a cycle and a gateway's polls after a fault nothing of what
# an exporter told of a card is left, and a window later nothing of lost pings.
STATUS_ECHO_SECONDS = SCRAPE_SECONDS + 1.5
PING_ECHO_SECONDS = WINDOW_SECONDS + STATUS_ECHO_SECONDS
# So many faults come with a second one at the same time.
PAIR_SHARE = 0.25
# How long a quorum with its majority may need to answer: the old leader's lease, on a loaded machine.
ANSWER_SECONDS = 30.0


class Stopwatch:
    """Times of the parts of one fault, seconds."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._laps: list[str] = []

    def lap(self, name: str) -> None:
        """The part of this name ends now."""
        now = time.monotonic()
        self._laps.append(f"{name} {now - self._last:.1f}")
        self._last = now

    def __str__(self) -> str:
        return f"{self._last - self._began:.1f} s ({', '.join(self._laps)})"


@dataclass
class RandomRun:
    """`count` faults, one after the other; the same seed gives the same list of kinds, victims and times."""

    scene: Scene
    traffic: Traffic
    seed: int
    done: list[str] = field(default_factory=list)
    # Where each fault and the time that its parts took are told, at once.
    tell: Callable[[str], None] = print

    def run(self, count: int) -> None:
        """Raises AssertionError with the seed and what was done up to then."""
        chance = random.Random(self.seed)
        plan = self.scene.wait_same_plan()
        try:
            for kind in _kinds(chance, count, self._harms()):
                self._one(kind, chance)
                assert self.scene.wait_same_plan() == plan, "the slot plan changed"
        except (AssertionError, DemoError) as error:
            listed = "\n".join(f"  {number}. {name}" for number, name in enumerate(self.done, start=1))
            error.add_note(f"seed {self.seed}, faults:\n{listed}\n{self._verdicts()}")
            raise

    def _verdicts(self) -> str:
        """The last changes of health, and what gateways made of them."""
        said = [(logged_at(e), h.name, e) for h in self.scene.members for e in h.logged("health")]
        said += [(logged_at(e), g.name, e) for g in self.scene.gateways for e in g.events()]
        last = sorted(said, key=lambda each: each[0])[-VERDICTS_TOLD:]
        return "\n".join(f"  {at:.1f} {name}: {json.dumps(event)}" for at, name, event in last)

    def _harms(self) -> list[Harm]:
        return [harm for harm in HARMS if self.scene.monitored or harm is not prometheus_harmed]

    def _one(self, kind: Harm, chance: random.Random) -> None:
        mark, reconnects, times = LogMark(self.scene), self._reconnects(), Stopwatch()
        began = time.time()
        hold = chance.uniform(*(LONG_SECONDS if chance.random() < LONG_SHARE else SHORT_SECONDS))
        self.done.append(f"{kind.__name__} …")
        fault = kind(self.scene, chance)
        if chance.random() < PAIR_SHARE:
            fault = fault.and_(chance.choice([harm for harm in ALSO if harm is not kind])(self.scene, chance))
        self.done[-1] = f"{fault.name}, {hold:.1f} s"
        times.lap("done")
        self._watch(fault, hold)
        times.lap("stood")
        if len(fault.members_down) * 2 < len(self.scene.members):
            self._quorum_answers(fault)
        times.lap("read")
        self.scene.heal()
        times.lap("healed")
        if self.scene.monitored and fault.may_lose:
            self._let_echo_pass(PING_ECHO_SECONDS if fault.pings_lost else STATUS_ECHO_SECONDS)
            times.lap("echo")
        self._judge(fault, mark, reconnects)
        assert_one_writer(self.scene, began - GRACE_SECONDS)
        times.lap("judged")
        slow, self.scene.slow_waits = self.scene.slow_waits, []
        self.tell("; ".join([f"{len(self.done)}. {fault.name}: {times}", *slow]))

    def _watch(self, fault: Fault, seconds: float) -> None:
        """Let the fault stand, and look at every gateway's routing all the while."""
        end = time.monotonic() + seconds

        def over() -> bool:
            for gateway in self.scene.gateways:
                if gateway.name not in fault.reset:
                    lost = (
                        self.scene.serials - gateway.in_use() - fault.may_lose.get(gateway.name, frozenset())
                    )
                    assert not lost, f"{gateway.name} lost {sorted(lost)} by: {fault.name}"
            return time.monotonic() > end

        self.traffic.pump(over, seconds + ANSWER_SECONDS, f"{fault.name} stands for {seconds:.1f} s")

    def _let_echo_pass(self, seconds: float) -> None:
        """Until nobody remembers evidence about a card, and what the leader made of it is undone."""
        end = time.monotonic() + seconds
        self.traffic.pump(lambda: time.monotonic() > end, seconds + ANSWER_SECONDS, "the echo passes")
        self.scene.wait_well()

    def _quorum_answers(self, fault: Fault) -> None:
        """While the fault stands: a majority is well, so every gateway that is not cut off can read."""
        able = [gateway for gateway in self.scene.gateways if gateway.name not in fault.blind]
        self.scene.wait(
            lambda: all(map(self.scene.fresh, able)),
            f"the quorum answers in spite of: {fault.name}",
            ANSWER_SECONDS,
        )

    def _judge(self, fault: Fault, mark: LogMark, reconnects: dict[tuple[str, str], int]) -> None:
        mark.assert_none(MOVED)
        for gateway in self.scene.gateways:
            excused = fault.may_lose.get(gateway.name, frozenset())
            for event in mark.events(gateway, OUT):
                assert event["serial"] in excused, f"{gateway.name}: {event} by: {fault.name}"
        for (name, serial), count in self._reconnects().items():
            excused = fault.may_lose.get(name, frozenset())
            same = name in fault.reset or count == reconnects[name, serial]
            assert same or serial in excused, f"{name} lost its connection to {serial} by: {fault.name}"
        self.traffic.wait_served()
        with self.traffic.undisturbed():
            pass
        assert all(stream.troubles.wrong == 0 for stream in self.traffic.streams), (
            f"wrong blocks by: {fault.name}"
        )

    def _reconnects(self) -> dict[tuple[str, str], int]:
        """How often each gateway's dataplane had to connect to each card again."""
        return {(g.name, serial): count for g in self.scene.gateways for serial, count in _reconnects_of(g)}


def _reconnects_of(gateway: Gateway) -> Iterator[tuple[str, int]]:
    status = gateway.view.status()
    assert status is not None, f"the dataplane of {gateway.name} does not answer"
    for card in status.cards:
        yield card.serial, int(card.reconnects)


def _kinds(chance: random.Random, count: int, harms: list[Harm]) -> Iterator[Harm]:
    """Every kind once, shuffled, before any comes again."""
    left: list[Harm] = []
    for _ in range(count):
        if not left:
            left = list(harms)
            chance.shuffle(left)
        yield left.pop()
