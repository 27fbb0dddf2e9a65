"""Packet loss of one destination over the last seconds: pure, time is an argument."""

from __future__ import annotations

from collections import deque


class LossWindow:
    """Outcomes of the probes of the last `seconds`, oldest first. Times are monotonic seconds.

    Fewer than `minimum` probes are no measurement: one lost packet after a start is not 100 % loss.
    """

    def __init__(self, seconds: float, minimum: int) -> None:
        self._seconds = seconds
        self._minimum = minimum
        self._outcomes: deque[tuple[float, float | None]] = deque()
        self.sent = 0
        self.received = 0

    def note(self, now: float, round_trip: float | None) -> None:
        """Take the outcome of the probe that ended at `now`: its round trip in seconds, None when lost."""
        self.sent += 1
        self.received += round_trip is not None
        self._outcomes.append((now, round_trip))
        self._forget(now)

    def loss_percent(self, now: float) -> float | None:
        """Lost probes in percent, 0 to 100; None while there are too few to tell."""
        self._forget(now)
        if len(self._outcomes) < self._minimum:
            return None
        lost = sum(round_trip is None for _, round_trip in self._outcomes)
        return 100.0 * lost / len(self._outcomes)

    def round_trip(self, now: float) -> float | None:
        """Mean round trip of the window in seconds; None when nothing came back."""
        self._forget(now)
        times = [round_trip for _, round_trip in self._outcomes if round_trip is not None]
        return sum(times) / len(times) if times else None

    def clear(self) -> None:
        """Forget the window, as when this host can't send at all; the counts stay."""
        self._outcomes.clear()

    def _forget(self, now: float) -> None:
        while self._outcomes and self._outcomes[0][0] <= now - self._seconds:
            self._outcomes.popleft()
