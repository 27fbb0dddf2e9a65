"""A real Prometheus for tests: the one on PATH, or Debian's package unpacked privately."""

from __future__ import annotations

import functools
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

from controlplane.base.backoff import Deadline
from controlplane.cluster.debian_package import DebianPackages, default_cache_dir, run, unpacked
from tests.support.procs import Program

PORT = 9090
_SERVER = Path("usr/bin/prometheus")
_TOOL = Path("usr/bin/promtool")


@functools.cache
def prometheus_program() -> Path:
    """The server; downloads it the first time (about 5 s)."""
    on_path = shutil.which("prometheus")
    return Path(on_path) if on_path is not None else _unpacked() / _SERVER


def promtool() -> Path:
    """The checker of configurations beside the server."""
    on_path = shutil.which("promtool")
    return Path(on_path) if on_path is not None else _unpacked() / _TOOL


def _unpacked() -> Path:
    wanted = DebianPackages(
        name="prometheus",
        packages=("prometheus",),
        suites=("bookworm",),
        check=lambda root: run([str(root / _SERVER), "--version"], Deadline(20.0)),
    )
    return unpacked(wanted, default_cache_dir("prometheus"), Deadline(300.0))


def start_prometheus(
    directory: Path, address: str, data: Path, place: Callable[[list[str]], list[str]] = lambda words: words
) -> Program:
    """Start it with the `prometheus.yml` of `directory`, listening on `address`; returns at once.

    `place` turns the command into the one that is run, as on another host.
    """
    command = [str(prometheus_program()), f"--config.file={directory / 'prometheus.yml'}"]
    command += [f"--web.listen-address={address}:{PORT}", f"--storage.tsdb.path={data}", "--log.level=warn"]
    return Program(place(command), name="prometheus")


def is_ready(address: str) -> bool:
    """Whether the Prometheus at this address serves."""
    try:
        with urllib.request.urlopen(f"http://{address}:{PORT}/-/ready", timeout=2) as answer:
            return int(answer.status) == 200
    except OSError:
        return False
