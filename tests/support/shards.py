"""Shards of tests: starts of the HTTP engine, a supervisor, and an end for every process."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.agent.shards.launch import find_holder, kill_by_token
from controlplane.agent.shards.life import Phase
from controlplane.agent.shards.process import ProcessId, is_running
from controlplane.agent.shards.record import RecordError, ShardDir
from controlplane.agent.shards.shard import Shard
from controlplane.agent.shards.spec import ShardSpec, check
from controlplane.agent.shards.supervisor import Supervisor
from controlplane.agent.shards.vigil import Patience
from tests.support.addresses import LoopbackNet, free_port
from tests.support.procs import wait_until
from tests.support.waiting import eventually

ENGINE = Path(__file__).with_name("http_engine.py")
SECONDS = 30.0


def engine_spec(net: LoopbackNet, shard_id: str = "m-0-0", *flags: str, **fields: Any) -> ShardSpec:
    """A start of the HTTP engine at a free port of the net's first host."""
    address = net.host(1)
    port = free_port(address)
    spec = ShardSpec(
        shard_id=shard_id,
        replica_id="m-0",
        model="m",
        profile="small",
        generation=1,
        engine="process",
        engine_version="",
        argv=(sys.executable, str(ENGINE), "--host", address, "--port", str(port), *flags),
        env={"PATH": "/usr/bin:/bin"},
        address=address,
        port=port,
        health_path="/health",
        stop_seconds=5.0,
    )
    return check(replace(spec, **fields))


@asynccontextmanager
async def supervisor(root: Path, patience: Patience | None = None) -> AsyncIterator[Supervisor]:
    """A supervisor that has adopted; at the end it lets go, and what runs is ended by `end_all`."""
    keeper = Supervisor(root, lambda shard: None, patience)
    await keeper.adopt()
    try:
        yield keeper
    finally:
        await keeper.close()


async def phase(keeper: Supervisor, shard_id: str, wanted: Phase) -> Shard:
    """The shard, once it is in that phase."""

    def reached() -> bool:
        shard = keeper.find(shard_id)
        return shard is not None and shard.status.phase is wanted

    found = keeper.find(shard_id)
    await eventually(reached, f"{shard_id} is {wanted}, it is {found and found.status}", SECONDS)
    shard = keeper.find(shard_id)
    assert shard is not None
    return shard


def log_text(shard: Shard) -> str:
    """What of its output is in the newest log file; it comes there a little later than the engine said it."""
    try:
        return shard.directory.log.read_text()
    except FileNotFoundError:
        return ""


async def worker_of(shard: Shard) -> int:
    """The process that an engine with `--spawn` says it started."""
    line = re.compile(r"worker (\d+)\n")
    await eventually(lambda: line.search(log_text(shard)) is not None, "the worker is told of", SECONDS)
    return int(line.findall(log_text(shard))[0])


async def get(spec: ShardSpec, path: str) -> Any:
    """The JSON that the engine answers to a GET."""

    def ask() -> Any:
        url = f"http://{spec.address}:{spec.port}{path}"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return json.load(answer)

    return await asyncio.to_thread(ask)


async def post(spec: ShardSpec, path: str) -> int:
    """The status that the engine answers to a POST; 0 when it ends instead of answering."""

    def ask() -> int:
        request = urllib.request.Request(f"http://{spec.address}:{spec.port}{path}", method="POST", data=b"")
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    return await asyncio.to_thread(ask)


def _wait_gone(process: ProcessId) -> None:
    wait_until(lambda: not is_running(process), f"{process} ends", SECONDS)


def end_all(root: Path) -> None:
    """End every holder and engine below `root`; for the end of a test."""
    for path in root.iterdir() if root.exists() else []:
        directory = ShardDir(path)
        holder = find_holder(directory, None)
        with suppress(RecordError):
            kill_by_token(directory.spec()[1])
        if holder is not None:
            _wait_gone(holder)
