"""A gateway pod's control process under test: its configuration, its process and its status file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.procs import PATIENCE, Program, python_module, wait_until


class Pod:
    """Directory, configuration and process of one `akv-gateway`."""

    def __init__(self, directory: Path, hosts: list[str], **settings: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.socket = directory / "dataplane.sock"
        self.status_file = directory / "status.prom"
        self.settings: dict[str, Any] = {
            "cluster_hostname": ",".join(hosts),
            "cluster_security": "insecure-loopback",
            "cluster_poll_ms": 100,
            # The product's is 500; a busy machine needs more to be fair.
            "cluster_etcd_timeout_ms": 1500,
            "dataplane_socket": str(self.socket),
            "client_socket": str(directory / "gateway.sock"),
            "state_dir": str(directory),
            "status_file": str(self.status_file),
            **settings,
        }
        self.settings = {key: value for key, value in self.settings.items() if value not in ("", None)}
        self.program: Program | None = None

    @property
    def config(self) -> Path:
        return self.directory / "gateway.yaml"

    @property
    def running(self) -> Program:
        assert self.program is not None
        return self.program

    def start(self, **settings: Any) -> Program:
        """Write the configuration and start the process."""
        self.settings |= settings
        self.config.write_text(yaml.safe_dump(self.settings))
        command = python_module("controlplane.apps.akv_gateway", "--config", str(self.config))
        self.program = Program(command, name="akv-gateway")
        return self.program

    def stop(self) -> None:
        """SIGTERM; a process that still ran must end by itself and cleanly."""
        if self.program is not None and self.program.returncode is None:
            assert self.program.stop() == 0, self.program.tail()

    def status(self) -> dict[str, float]:
        """The status file's samples by name with labels; empty when it is not there yet."""
        try:
            lines = self.status_file.read_text().splitlines()
        except FileNotFoundError:
            return {}
        rows = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def wait_status(self, name: str, value: float, seconds: float = PATIENCE) -> dict[str, float]:
        """The samples, once `name` has `value`."""

        def probe() -> dict[str, float] | None:
            samples = self.status()
            return samples if samples.get(name) == value else None

        return wait_until(probe, f"{name} = {value} in the status file", seconds)
