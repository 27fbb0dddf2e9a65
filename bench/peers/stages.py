"""The servers of each cache, on loopback, and the command line of its worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.peers.install import Place
from bench.pod import HOST, running_pod
from bench.processes import Child, child, free_port

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Stage:
    """A running cache: its servers, its worker to be told what to do, and ours of the servers' gateway."""

    worker: Child
    servers: list[Child] = field(default_factory=list)
    gateway: Child | None = None


@dataclass(frozen=True)
class Settings:
    """`memory` bytes are the client's, `capacity` bytes the cache's."""

    place: Place
    directory: Path
    memory: int
    capacity: int


Opener = Callable[[Settings, ExitStack], Stage]


def _worker(
    settings: Settings, stack: ExitStack, name: str, *arguments: str | int, ours: bool = False
) -> Child:
    python = Path(sys.executable) if ours else settings.place.python
    env = _environment(settings, name)
    command: list[str | Path] = [
        python,
        "-m",
        "bench.peers.worker",
        name,
        str(settings.memory),
        *map(str, arguments),
    ]
    made = stack.enter_context(child(command, settings.directory / f"{name}-worker.log", env))
    made.line(60.0)
    return made


def _environment(settings: Settings, name: str) -> dict[str, str]:
    libraries = {"LD_LIBRARY_PATH": str(settings.place.cuda_runtime)} if name == "mooncake" else {}
    return {"PYTHONPATH": str(ROOT), **libraries}


def _loopback(pacing: str, settings: Settings, stack: ExitStack) -> Stage:
    command = [sys.executable, "-m", "bench.peers.clients.loopback", HOST, str(settings.memory), pacing]
    log, env = settings.directory / f"loopback-{pacing}.log", _environment(settings, "loopback")
    server = stack.enter_context(child(command, log, env))
    port = server.line(30.0).split()[1]
    return Stage(_worker(settings, stack, "loopback", HOST, port, pacing, ours=True), [server])


def _mooncake(settings: Settings, stack: ExitStack) -> Stage:
    rpc, http, metrics, node, client = (free_port(HOST) for _ in range(5))
    env = _environment(settings, "mooncake")
    master_flags = [f"-rpc_port={rpc}", f"-metrics_port={metrics}", "-enable_http_metadata_server=true"]
    master_flags += [f"-http_metadata_server_host={HOST}", f"-http_metadata_server_port={http}"]
    program = settings.place.python.parent / "mooncake_master"
    master = stack.enter_context(
        child([program, *master_flags], settings.directory / "mooncake-master.log", env)
    )
    master.wait_port(HOST, rpc)
    master.wait_port(HOST, http)
    place = (f"http://{HOST}:{http}/metadata", f"{HOST}:{rpc}")
    command: list[str | Path] = [
        settings.place.python,
        "-m",
        "bench.peers.clients.mooncake",
        f"{HOST}:{node}",
        *place,
    ]
    storage = stack.enter_context(
        child([*command, str(settings.capacity)], settings.directory / "mooncake-storage.log", env)
    )
    while storage.line(60.0) != "ready":
        continue
    worker = _worker(settings, stack, "mooncake", f"{HOST}:{client}", *place)
    return Stage(worker, [master, storage])


def _redis(settings: Settings, stack: ExitStack) -> tuple[Child, int, Path]:
    root = settings.place.debian
    libraries = ":".join(str(folder) for folder in (root / "usr/lib").glob("*-linux-gnu"))
    port, socket = free_port(HOST), settings.directory / "redis.sock"
    flags = [
        "--bind",
        HOST,
        "--port",
        str(port),
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    flags += ["--maxmemory", str(settings.capacity), "--dir", str(settings.directory)]
    server = stack.enter_context(
        child(
            [root / "usr/bin/redis-server", *flags],
            settings.directory / "redis.log",
            {"LD_LIBRARY_PATH": libraries},
        )
    )
    server.wait_port(HOST, port)
    return server, port, socket


def _lmcache(settings: Settings, stack: ExitStack) -> Stage:
    server, port, _ = _redis(settings, stack)
    return Stage(_worker(settings, stack, "lmcache-resp", HOST, port), [server])


def _redis_py(settings: Settings, stack: ExitStack) -> Stage:
    server, _, socket = _redis(settings, stack)
    return Stage(_worker(settings, stack, "redis-py", str(socket)), [server])


def _ours(
    worker_name: str,
    settings: Settings,
    stack: ExitStack,
    *,
    read_cache_size: int | None = 0,
    busy_poll: bool = False,
) -> Stage:
    """One card in memory over NVMe/TCP, a dataplane with one worker, its control process.

    Without a read cache: each block is read once, and its copy would never be used.
    """
    pod = stack.enter_context(
        running_pod(
            settings.directory,
            capacity=settings.capacity,
            shared_memory_size=4 * settings.memory,
            read_cache_size=read_cache_size,
            busy_poll=busy_poll,
            io_timeout_ms=60_000,
        )
    )
    worker = _worker(settings, stack, worker_name, str(pod.socket), ours=True)
    return Stage(worker, [pod.cards[0].process, pod.dataplane, pod.control], pod.dataplane)


OPENERS: dict[str, Opener] = {
    "loopback": partial(_loopback, "default"),
    "loopback-unpaced": partial(_loopback, "unpaced"),
    "ours-arena": partial(_ours, "ours-arena"),
    "ours-region": partial(_ours, "ours-region"),
    "ours-cached": partial(_ours, "ours-region", read_cache_size=None),
    "ours-polling": partial(_ours, "ours-region", busy_poll=True),
    "mooncake": _mooncake,
    "lmcache-resp": _lmcache,
    "redis-py": _redis_py,
}


@contextmanager
def opened(name: str, settings: Settings) -> Iterator[Stage]:
    """The cache of this name, ready."""
    with ExitStack() as stack:
        yield OPENERS[name](settings, stack)
