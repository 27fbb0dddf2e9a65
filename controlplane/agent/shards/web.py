"""What is asked of an engine over HTTP: whether it serves, whether it still does, and that it drains."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Literal

import aiohttp

from controlplane.agent.shards.spec import ShardSpec
from controlplane.agent.shards.vigil import Patience, Vigil
from controlplane.base.addresses import bracketed
from controlplane.base.backoff import Clock, Random
from controlplane.base.logging import get_logger

ASK_SECONDS = 3.0
READY_POLL = 0.5
_DONE, _AGAIN = 200, 202
_NO_LIMIT = aiohttp.ClientTimeout()  # of aiohttp's own: each question has its deadline

log = get_logger("shards")


async def wait_ready(spec: ShardSpec) -> None:
    """Ask the health path until it answers 200; how long that may take is the leader's to judge."""
    while True:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            if await _ask("GET", spec, spec.health_path) == _DONE:
                return
        await asyncio.sleep(READY_POLL)


async def watch(
    spec: ShardSpec, patience: Patience, clock: Clock = time.monotonic, uniform: Random = random.random
) -> str:
    """Probe the health path until the engine is to be given up; why."""
    vigil = Vigil(patience, clock())
    while True:
        await asyncio.sleep(vigil.pause(uniform()))
        trouble = await _probe(spec, patience.deadline)
        before = vigil.missed
        if reason := vigil.heard(trouble, clock()):
            return reason
        if trouble and not before:
            log.warning("Shard does not answer", shard=spec.shard_id, reason=trouble)
        elif before and not trouble:
            log.info("Shard answers again", shard=spec.shard_id, missed=before)


async def _probe(spec: ShardSpec, seconds: float) -> str:
    """Ask the health path once; what is wrong with the answer, empty when it is 200."""
    try:
        status = await _ask("GET", spec, spec.health_path, seconds)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "" if status == _DONE else f"HTTP status {status}"


async def ask_drain(spec: ShardSpec) -> Literal["done", "again"] | str:
    """POST the drain path: done, again (work still runs), or another text: why it could not be asked."""
    try:
        status = await _ask("POST", spec, spec.drain_path)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return {_DONE: "done", _AGAIN: "again"}.get(status, f"HTTP status {status}")


async def _ask(method: str, spec: ShardSpec, path: str, seconds: float = ASK_SECONDS) -> int:
    url = f"http://{bracketed(spec.address)}:{spec.port}{path}"
    async with (
        asyncio.timeout(seconds),
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=_NO_LIMIT) as session,
        session.request(method, url, allow_redirects=False) as answer,
    ):
        return answer.status
