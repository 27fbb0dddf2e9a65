"""Delays between attempts to reach the gateway."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Capped exponential delays in seconds, each drawn evenly from the upper half of its step."""

    def __init__(self, first: float, cap: float, rng: Callable[[], float]) -> None:
        self._first = first
        self._cap = cap
        self._rng = rng
        self._step = first

    def next_delay(self) -> float:
        """The delay before the next attempt; doubles towards the cap."""
        step, self._step = self._step, min(self._step * 2, self._cap)
        return step * (0.5 + 0.5 * self._rng())

    def reset(self) -> None:
        """Start again at the first delay: an attempt succeeded."""
        self._step = self._first
