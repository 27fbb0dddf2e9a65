"""What is asked of an engine over HTTP: whether it serves, and that it drains."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

import aiohttp

from controlplane.agent.shards.spec import ShardSpec
from controlplane.base.addresses import bracketed

ASK_SECONDS = 3.0
READY_POLL = 0.5
_DONE, _AGAIN = 200, 202


async def wait_ready(spec: ShardSpec) -> None:
    """Ask the health path until it answers 200; how long that may take is the leader's to judge."""
    while True:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            if await _ask("GET", spec, spec.health_path) == _DONE:
                return
        await asyncio.sleep(READY_POLL)


async def ask_drain(spec: ShardSpec) -> Literal["done", "again"] | str:
    """POST the drain path: done, again (work still runs), or another text: why it could not be asked."""
    try:
        status = await _ask("POST", spec, spec.drain_path)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return {_DONE: "done", _AGAIN: "again"}.get(status, f"HTTP status {status}")


async def _ask(method: str, spec: ShardSpec, path: str) -> int:
    url = f"http://{bracketed(spec.address)}:{spec.port}{path}"
    async with (
        asyncio.timeout(ASK_SECONDS),
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, url, allow_redirects=False) as answer,
    ):
        return answer.status
