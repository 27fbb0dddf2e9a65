"""A clock that goes on when a test says so, for what takes its time as an argument."""

from __future__ import annotations


class ManualClock:
    """Seconds, as monotonic ones."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
