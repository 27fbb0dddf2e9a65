"""Capped exponential backoff with jitter, and deadlines on the monotonic clock."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

Clock = Callable[[], float]
Random = Callable[[], float]


class Backoff:
    """Delays for successive retries: `first`, doubled each time up to `cap` seconds, each less up to a half.

    The jitter keeps many processes that lost one server from coming back at the same moment. `uniform` gives
    numbers in [0, 1) and is injected by tests.
    """

    def __init__(
        self, first: float, cap: float, *, factor: float = 2.0, uniform: Random = random.random
    ) -> None:
        if not 0 < first <= cap or factor < 1:
            raise ValueError(f"backoff needs 0 < first <= cap and factor >= 1, got {first}, {cap}, {factor}")
        self._first = first
        self._cap = cap
        self._factor = factor
        self._uniform = uniform
        self._ceiling = first

    def next(self) -> float:
        """Seconds to wait before the next try, in (ceiling / 2, ceiling]."""
        ceiling = self._ceiling
        self._ceiling = min(self._cap, ceiling * self._factor)
        return ceiling * (1.0 - self._uniform() / 2.0)

    def reset(self) -> None:
        """Start over: the last try went well."""
        self._ceiling = self._first


class Tries:
    """0 to `count` - 1, with a pause before each but the first: `async for _ in Tries(4)`.

    For what others may undo or overtake, such as a transaction with compares: who lost tries again after a
    time of its own, so that of many that write at once each gets its turn.
    """

    def __init__(
        self, count: int, first: float = 0.01, cap: float = 0.2, *, uniform: Random = random.random
    ) -> None:
        self._count = count
        self._made = 0
        self._pause = Backoff(first, cap, uniform=uniform)

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        if self._made == self._count:
            raise StopAsyncIteration
        if self._made:
            await asyncio.sleep(self._pause.next())
        self._made += 1
        return self._made - 1


class Deadline:
    """A point in time on a monotonic clock that one operation and all its steps share."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Whether nothing is left."""
        return self._clock() >= self._end
