"""Log events of the native engine, into the process' own log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.base.logging import get_logger
from dataplane import _native

log = get_logger("engine")


@contextmanager
def native_log(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Write the engine's events as they come; those that are left at the end are written then."""
    descriptor = _native.capture_events()
    loop.add_reader(descriptor, write_waiting)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        write_waiting()


def write_waiting() -> None:
    """Write all events that wait."""
    for level, event, fields in _native.take_events():
        getattr(log, level)(event, **fields)
