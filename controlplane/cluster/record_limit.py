"""Lets what strangers cause into the log once a minute each, and says then how often it came meanwhile."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass

from controlplane.base.backoff import Clock

SECONDS = 60.0
# Who may cause a record of their own within that time; all others share one.
KEPT = 256


@dataclass(slots=True)
class _Last:
    """The last record of one key, and how many were held back since."""

    at: float
    held: int = 0


class _Others:
    """The key of all that are beyond KEPT."""


class RecordLimit:
    """One record in SECONDS for each key, of at most KEPT keys and one more that the others share."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[Hashable, _Last] = {}

    def admit(self, key: Hashable) -> int | None:
        """How many were held back since the last record of this key; None when this one is held back too."""
        now = self._clock()
        key = self._place(key, now)
        last = self._last.get(key)
        if last is not None and now - last.at < SECONDS:
            last.held += 1
            return None
        self._last[key] = _Last(now)
        return last.held if last is not None else 0

    def _place(self, key: Hashable, now: float) -> Hashable:
        """The key itself while there is room; what is long over makes room."""
        if key in self._last or len(self._last) < KEPT:
            return key
        self._last = {
            known: last for known, last in self._last.items() if now - last.at < SECONDS or known is _Others
        }
        return key if len(self._last) < KEPT else _Others


def repeated(held: int) -> dict[str, int]:
    """The field of a record that stands for more than itself."""
    return {"repeated": held} if held else {}
