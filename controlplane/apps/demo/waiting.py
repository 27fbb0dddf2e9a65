"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from controlplane.apps.demo.errors import NotInTimeError

_EVERY_SECONDS = 0.02


def wait_until(
    condition: Callable[[], bool], seconds: float, what: str, *, check: Callable[[], None] = lambda: None
) -> float:
    """Seconds until `condition` held; `check` may raise meanwhile. NotInTimeError after `seconds`."""
    began = time.monotonic()
    while not condition():
        check()
        if time.monotonic() - began > seconds:
            raise NotInTimeError(f"not within {seconds:.0f} s: {what}")
        time.sleep(_EVERY_SECONDS)
    return time.monotonic() - began
