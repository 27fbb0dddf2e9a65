"""What every gRPC handler of a cluster host shares: a deadline, and refusals as status and sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from controlplane.base.request_errors import RequestError

# Trailing metadata of a refusal: the host that refused.
HOST_METADATA = "awide-host"

# A refusal that quotes what was sent: more than this of it helps nobody, and no reader takes a megabyte.
_SENTENCE_CHARACTERS = 2000

T = TypeVar("T")


class Handlers:
    """Runs the work of handlers of one host."""

    def __init__(self, host: str) -> None:
        self._host = host

    async def run(self, context: Any, seconds: float, work: Callable[[float], Awaitable[T]]) -> T:
        """Await `work(limit)` within `seconds`, or the caller's deadline if that is shorter.

        A RequestError becomes the call's status and sentence, with the host's name in the metadata.
        """
        left = context.time_remaining()
        limit = seconds if left is None else min(seconds, left)
        try:
            async with asyncio.timeout(limit):
                return await work(limit)
        except RequestError as error:
            code, sentence = error.code, str(error)
        except TimeoutError:
            code, sentence = grpc.StatusCode.DEADLINE_EXCEEDED, f"not done within {limit:.1f} s; ask again"
        await context.abort(code, _bounded(sentence), ((HOST_METADATA, self._host),))
        raise AssertionError("abort always raises")


def _bounded(sentence: str) -> str:
    if len(sentence) <= _SENTENCE_CHARACTERS:
        return sentence
    half = _SENTENCE_CHARACTERS // 2
    return f"{sentence[:half]} … {sentence[-half:]}"
