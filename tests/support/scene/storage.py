"""A storage host of the scene: the cluster service with its etcd, exporters, and software cards."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.hosts import NetHost
from tests.support.clock import SkewedClock
from tests.support.cluster_hosts import START_SECONDS, ClusterHost
from tests.support.procs import Program, suspend, wait_until
from tests.support.softcard import softcard_program

CARD_PORT = 4420
CAPACITY = "192M"
# A slow card stands and runs for so long, seconds: far below any deadline.
SLOW_STANDS, SLOW_RUNS = 0.15, 0.05


@dataclass(frozen=True)
class CardSpec:
    """A software card: its serial number, its device name and port on its host."""

    serial: str
    device: str = "xdp0"
    port: int = CARD_PORT

    @property
    def nqn(self) -> str:
        return f"nqn.2026-01.test:{self.serial.lower()}"


@dataclass
class StorageHost(ClusterHost):
    """A host in a namespace. Its card CLI is the real one; a test can let it lie about a card."""

    net: NetHost = field(default_factory=lambda: NetHost("", "", ""))
    specs: dict[str, CardSpec] = field(default_factory=dict)
    cards: dict[str, Program] = field(default_factory=dict, repr=False)
    # When suspended processes went on, Unix seconds.
    resumed_at: list[float] = field(default_factory=list)
    _suspended: set[int] = field(default_factory=set)
    _slow: list[SlowProcess] = field(default_factory=list, repr=False)
    # What earlier lives of the service logged.
    _past: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls, net: NetHost, directory: Path, *specs: CardSpec, witness: bool = False, secure: bool = False
    ) -> Self:
        """A host that has these cards; nothing is started."""
        host = cls(net.name, net.address, directory, witness, secure, net=net)
        host.specs = {spec.serial: spec for spec in specs}
        host.tell_the_truth()
        return host

    def place(self, command: list[str]) -> list[str]:
        return self.net.command(command)

    @property
    def clock(self) -> SkewedClock:
        """The wall clock of the host's cluster service."""
        return SkewedClock(self.directory / "clock")

    @property
    def environment(self) -> Mapping[str, str]:
        return self.clock.environment

    @property
    def card_state(self) -> Path:
        path = self.directory / "cards.d"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def start_all(self) -> None:
        """Start whatever is not running: cards, exporter, service."""
        wait_for("ready", self.begin_all())

    def begin_all(self) -> list[Program]:
        """The same without waiting until they are ready; what was started."""
        begun = [
            self.begin_card(spec) for spec in self.specs.values() if not running(self.cards.get(spec.serial))
        ]
        if not running(self.exporter):
            exporter = self.begin_exporter()
            begun += [] if self.exporters_wait else [exporter]
        if not running(self.service):
            begun.append(self.begin())
        return begun

    def begin(self) -> Program:
        if self.service is not None:
            self._past += self.service.events()
        return super().begin()

    def logged(self, *names: str) -> list[dict[str, Any]]:
        """What the cluster service logged under these names, in all its lives."""
        now = self.service.events() if self.service is not None else []
        return [event for event in [*self._past, *now] if event.get("event") in names]

    def start_card(self, spec: CardSpec) -> Program:
        """A card that is ready."""
        program = self.begin_card(spec)
        wait_for("ready", [program])
        return program

    def begin_card(self, spec: CardSpec) -> Program:
        """A card whose file survives it: what it stored is there when it starts again, at any port."""
        self.specs[spec.serial] = spec
        command = [
            softcard_program(),
            "serve",
            "--id",
            spec.device,
            "--serial",
            spec.serial,
            "--nqn",
            spec.nqn,
        ]
        command += ["--listen", f"{self.address}:{spec.port}", "--capacity", CAPACITY]
        command += [
            "--state-dir",
            str(self.card_state),
            "--file",
            str(self.directory / f"{spec.serial}.card"),
        ]
        program = Program(self.place(command), name=f"card-{spec.serial}")
        self.cards[spec.serial] = program
        return program

    def tell_the_truth(self) -> None:
        """Let the card CLI be the real one."""
        self.set_cli(f"exec {self._real_cli}")

    def tell_sick(self, serial: str) -> None:
        """Let the card CLI say that the card's storage service is stopped, while it serves."""
        self._tell(
            f"for c in d['cards']: c['state'] = 'stopped' if c['serial'] == {serial!r} else c['state']"
        )

    def tell_nothing_of(self, *serials: str) -> None:
        """Let the card CLI not list these cards."""
        self._tell(f"d['cards'] = [c for c in d['cards'] if c['serial'] not in {set(serials)!r}]")

    def _tell(self, edit: str) -> None:
        """Let the card CLI be the real one, with its document `d` edited."""
        script = f"import json, sys\nd = json.load(sys.stdin)\n{edit}\njson.dump(d, sys.stdout)"
        self.set_cli(f"{self._real_cli} | python3 -I -S -c {shlex.quote(script)}")

    @property
    def _real_cli(self) -> str:
        command = [softcard_program(), "list", "--json", "--state-dir", str(self.card_state)]
        return shlex.join(command)

    def processes(self) -> list[Program]:
        """What runs here and was started by us; etcd is the service's."""
        programs = [*self.cards.values(), self.exporter, self.service]
        return [program for program in programs if program is not None and running(program)]

    def remove_cards(self) -> None:
        """End the cards and forget that they were here: the card CLI lists a dead card until then."""
        for card in self.cards.values():
            card.stop()
        self.cards.clear()
        self.specs.clear()
        shutil.rmtree(self.card_state)

    def kill_all(self) -> None:
        """SIGKILL everything at once: a host that loses its power."""
        programs = self.processes()
        for program in programs:
            os.kill(program.pid, signal.SIGKILL)
        for program in programs:
            program.kill()

    def lose_disk(self) -> None:
        """etcd's data are gone; a service that runs finds out by itself."""
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def wipe(self) -> None:
        """Everything that the stopped host knew of its cluster is gone, and what it logged there."""
        assert not running(self.service)
        self.service = None
        self._past.clear()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        shutil.rmtree(self.member_file.parent, ignore_errors=True)

    def suspend(self, *pids: int) -> None:
        """Let them stand still; `resume` lets them go on."""
        for pid in pids:
            self._suspended.add(pid)
            suspend(pid)

    def slow_down(self, pid: int) -> None:
        """Let the process stand still most of the time, each time for a moment, until `resume`."""
        self._slow.append(SlowProcess(pid))

    def resume(self) -> None:
        """SIGCONT to all that were suspended or slowed down here and are still there."""
        while self._slow:
            self._slow.pop().end()
        if self._suspended:
            self.resumed_at.append(time.time())
        for pid in self._suspended:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGCONT)
        self._suspended.clear()

    def wait_etcd(self, other_than: int = 0, seconds: float = 30.0) -> int:
        """The pid of the member that the service runs, once there is one (other than `other_than`)."""
        return wait_until(
            lambda: _pid_other_than(self.etcd_pid, other_than), f"{self.name} runs etcd", seconds
        )

    def end(self) -> None:
        while self._slow:
            self._slow.pop().end()
        super().end()
        for card in self.cards.values():
            card.kill()


class SlowProcess:
    """A process that is suspended and resumed in turn."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"slow-{pid}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it go on."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            while not self._ended.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                self._ended.wait(SLOW_STANDS)
                os.kill(self._pid, signal.SIGCONT)
                self._ended.wait(SLOW_RUNS)


def wait_for(event: str, begun: Iterable[Program]) -> None:
    """Until all of them have logged it. They start side by side: each takes about a second of a core."""
    for program in begun:
        program.wait_event(event, START_SECONDS)


def running(program: Program | None) -> bool:
    """It was started and has not ended."""
    return program is not None and program.returncode is None


def _pid_other_than(find: Callable[[], int], other_than: int) -> int:
    try:
        pid = find()
    except (AssertionError, OSError):
        return 0
    return 0 if pid == other_than else pid
