"""Whether an engine that served still does: how often it is asked, and when it is given up. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How an engine that serves is probed; seconds. With `misses` 0 it is not.

    An engine is busy within one step for tens of seconds: a long prefill, graphs that are captured, a kernel
    that is compiled. Hence one probe may take long, several must fail in a row, and what is late but answers
    is well. With these numbers an engine that hangs is given up after 3.5 to 4 minutes, one that answers
    errors or refuses connections after 30 to 60 s.
    """

    interval: float = 10.0
    deadline: float = 30.0
    misses: int = 6


class Vigil:
    """Counts the probes that failed in a row. Times are monotonic seconds.

    It does not go by seconds of silence: those in which the agent itself was suspended are no fault of the
    engine, and cost it one probe at most.
    """

    def __init__(self, patience: Patience, now: float) -> None:
        self._patience = patience
        self._answered = now
        self.missed = 0

    def pause(self, uniform: float) -> float:
        """Seconds to the next probe: the interval less up to a half by `uniform`, which is in [0, 1)."""
        return self._patience.interval * (1.0 - uniform / 2.0)

    def heard(self, trouble: str, now: float) -> str:
        """Take a probe's outcome, empty for an answer; why the engine is given up, empty while it is not."""
        if not trouble:
            self._answered, self.missed = now, 0
            return ""
        self.missed += 1
        if self.missed < self._patience.misses:
            return ""
        return (
            f"unresponsive: {self.missed} health probes failed in a row, the last good answer was "
            f"{now - self._answered:.0f} s ago; the last one: {trouble}"
        )
