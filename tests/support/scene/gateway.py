"""A gateway pod of the scene: control process and dataplane on a host, and a replay of a trace through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from controlplane.apps.demo.observers import DataplaneView, read_status_file, routable
from controlplane.apps.demo.replay import Replay
from controlplane.apps.demo.requests import Placement
from tests.hosts import NetHost
from tests.support.clock import SkewedClock
from tests.support.procs import Program, python_environment, python_module
from tests.support.scene.storage import running, wait_for

SICK_POLLS = ABSENT_POLLS = 3
BLOCK_BYTES = 1024
PORT = 5557
DATAPLANE_READY = "Dataplane ready"
_SHARED_MEMORY = 64 << 20


@dataclass
class Gateway:
    """Directory, configuration and processes of one pod."""

    net: NetHost
    directory: Path
    chosen: dict[str, Any]
    control: Program | None = field(default=None, repr=False)
    dataplane: Program | None = field(default=None, repr=False)
    view: DataplaneView = field(init=False, repr=False)
    # Logs of earlier lives of the control process.
    _past: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.view = DataplaneView(self.directory / "dataplane.sock")

    @property
    def name(self) -> str:
        return self.net.name

    @property
    def clock(self) -> SkewedClock:
        """The wall clock of both processes."""
        return SkewedClock(self.directory / "clock")

    @property
    def status_file(self) -> Path:
        return self.directory / "status.prom"

    def settings(self) -> dict[str, Any]:
        """What is in gateway.yaml."""
        return {
            "storage_backend": "kv-nvme",
            "cluster_sick_polls": SICK_POLLS,
            "cluster_absent_polls": ABSENT_POLLS,
            "bind_address": self.net.address,
            "port": PORT,
            "shared_memory_size": _SHARED_MEMORY,
            "status_file": str(self.status_file),
            "dataplane_socket": str(self.directory / "dataplane.sock"),
            "client_socket": str(self.directory / "gateway.sock"),
            "state_dir": str(self.directory),
            **self.chosen,
        }

    def start(self) -> None:
        """Start what is not running."""
        wait_for(DATAPLANE_READY, self.begin())
        if not running(self.control):
            if self.control is not None:
                self._past += self.control.events()
            self.control = self._program("controlplane.apps.akv_gateway", "gateway")

    def begin(self) -> list[Program]:
        """Start the dataplane unless it runs, without waiting for it; what was started."""
        self._config.write_text(yaml.safe_dump(self.settings()))
        if running(self.dataplane):
            return []
        self.dataplane = self._program("dataplane.main", "dataplane")
        return [self.dataplane]

    def end(self) -> None:
        """Kill both."""
        self.view.close()
        for program in (self.control, self.dataplane):
            if program is not None:
                program.kill()

    def replay(self, name: str, arguments: list[str]) -> Replay:
        """A replay through this gateway. It is a process of the test, not of the host."""
        fixed = ["--socket", str(self.directory / "gateway.sock"), "--block-bytes", str(BLOCK_BYTES)]
        return Replay(f"{self.name}-{name}", [*fixed, *arguments], self.directory / f"{name}.log")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What the control process logged in all its lives."""
        now = self.control.events() if self.control is not None else []
        return [event for event in [*self._past, *now] if name is None or event.get("event") == name]

    def status(self) -> Mapping[tuple[str, str], float]:
        """The status file's samples by (name, label value)."""
        return read_status_file(self.status_file)

    def fingerprint(self) -> str:
        """That of the status file; empty before the first plan."""
        found = [label for name, label in self.status() if name == "xkv_gateway_cluster_slot_plan_info"]
        return found[0] if found else ""

    def routed(self) -> frozenset[str]:
        """Cards that the dataplane's plan routes to."""
        return routable(self.view.plan())

    def in_use(self) -> frozenset[str]:
        """Cards that a request can go to now: routed to, and connected."""
        return self.routed() & frozenset(self.view.active())

    def placement(self) -> Placement:
        """Which card has which dialog, by the plan that is served now."""
        plan = self.view.plan()
        assert plan is not None, f"{self.name} serves no plan"
        return Placement.of(plan)

    @property
    def _config(self) -> Path:
        return self.directory / "gateway.yaml"

    def _program(self, module: str, kind: str) -> Program:
        command = python_module(module, "--config", str(self._config))
        environment = python_environment(self.clock.environment)
        return Program(self.net.command(command), env=environment, name=f"{self.name}-{kind}")
