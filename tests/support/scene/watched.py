"""A storage host that is watched as the manual says: a ping exporter and a Prometheus of its own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from tests.hosts import NetHost
from tests.support.procs import Program, python_module, wait_until
from tests.support.prometheus import PORT, start_prometheus
from tests.support.scene.storage import StorageHost, running

PING_PORT = 9427
SCRAPE_SECONDS = 1.0
# Loose enough for a loaded machine, and short enough for a test.
WINDOW_SECONDS = 3.0
_PING_TIMES = ("--interval", "0.25", "--window", str(WINDOW_SECONDS))


@dataclass
class WatchedHost(StorageHost):
    """Its leader reads Prometheus; a witness has the witness exporter in the card exporter's place."""

    ping: Program | None = field(default=None, repr=False)
    prometheus: Program | None = field(default=None, repr=False)

    def configure(self, **extra: str) -> None:
        super().configure(
            AWC_METRICS="prometheus",
            AWC_PROMETHEUS_URL=f"http://{self.address}:{PORT}",
            AWC_SCRAPE_SECONDS=str(SCRAPE_SECONDS),
            AWC_DATA_ADDRESSES=self.address,
            **extra,
        )

    def begin_exporter(self) -> Program:
        if not self.witness:
            return super().begin_exporter()
        arguments = ("--listen", f"{self.address}:7891", "--name", self.name, *self.exporter_security)
        self.exporter = Program(self.place(python_module("controlplane.exporters.witness", *arguments)))
        return self.exporter

    def begin_all(self) -> list[Program]:
        begun = super().begin_all()
        if not running(self.ping):
            listen = ("--listen", f"{self.address}:{PING_PORT}")
            targets = ("--targets", str(self.monitoring_dir / "ping-targets.json"))
            arguments = (*listen, *targets, *_PING_TIMES, *self.exporter_security)
            command = python_module("controlplane.exporters.ping", *arguments)
            self.ping = Program(self.place(command), name=f"ping-{self.name}")
            begun += [] if self.exporters_wait else [self.ping]
        return begun

    def start_prometheus(self) -> None:
        """Start Prometheus with what the service wrote for it, unless it runs."""
        if running(self.prometheus):
            return
        config = self.monitoring_dir / "prometheus.yml"
        wait_until(config.exists, f"{config} is written", 30.0)
        data = self.directory / "prometheus"
        self.prometheus = start_prometheus(self.monitoring_dir, self.address, data, self.place)

    def drop_pings(self, *sources: NetHost) -> None:
        """Answer no ping of these hosts; everything else gets through."""
        rules = "".join(f"    ip saddr {source.address} icmp type echo-request drop\n" for source in sources)
        chain = f"  chain input {{\n    type filter hook input priority 0;\n{rules}  }}\n"
        self._nft(f"table inet pings {{\n{chain}}}\n")

    def answer_pings(self) -> None:
        """Undo `drop_pings`."""
        self._nft("table inet pings\ndelete table inet pings\n")

    def _nft(self, script: str) -> None:
        command = ["ip", "netns", "exec", self.net.namespace, "nft", "-f", "-"]
        subprocess.run(command, input=script, text=True, check=True, capture_output=True, timeout=20)

    def processes(self) -> list[Program]:
        watchers = [p for p in (self.ping, self.prometheus) if p is not None and running(p)]
        return [*super().processes(), *watchers]

    def end(self) -> None:
        for program in (self.prometheus, self.ping):
            if program is not None:
                program.kill()
        super().end()
