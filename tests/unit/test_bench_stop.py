"""Signals that end a run of akv-bench."""

from __future__ import annotations

import os
import signal
import threading
import time

from bench.stop import Stop


def test_a_signal_at_any_moment_is_noted() -> None:
    """Also one that interrupts the look whether there was one."""
    before = signal.getsignal(signal.SIGTERM)
    for attempt in range(200):
        with Stop() as stop:
            assert not stop.came
            sender = threading.Thread(target=_send_after, args=(attempt % 20 * 1e-5,))
            sender.start()
            while not stop.wait(0.0):
                pass
            sender.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_a_long_wait() -> None:
    with Stop() as stop:
        sender = threading.Thread(target=_send_after, args=(0.05,))
        sender.start()
        assert stop.wait(3600.0)
        assert stop.wait(3600.0), "and each wait after it"
        sender.join()


def test_without_a_signal_a_wait_ends_in_time() -> None:
    with Stop() as stop:
        assert not stop.wait(0.01)
        assert not stop.came


def _send_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)
