"""What a fork means for a client: its session stays the parent's, and none of its locks stays locked."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

# How long a fork may wait for the lock of one client. It is had for microseconds, but for ever by a thread
# that forks while it has it itself: in a signal's handler.
_PATIENCE = 1.0


class Home:
    """The process in which something was made."""

    __slots__ = ("_generation",)
    _forks = 0

    def __init__(self) -> None:
        self._generation = Home._forks

    @property
    def left(self) -> bool:
        """This is a forked child of it: what is the parent's must not be touched."""
        return self._generation != Home._forks

    @classmethod
    def leave(cls) -> None:
        """This process was just forked: all that was made is its parent's."""
        cls._forks += 1


class Locked(Protocol):
    """Something with a lock that its users may have at any time."""

    def fork_lock(self) -> threading.Lock:
        """The lock of now."""

    def renew_lock(self) -> None:
        """A new lock is needed: in a child, whoever had the present one may not be there."""


class _Guard:
    """Holds the locks over a fork, so that nothing that they guard is half changed in the child."""

    def __init__(self) -> None:
        self._objects: weakref.WeakSet[Locked] = weakref.WeakSet()
        self._held: list[threading.Lock] = []
        os.register_at_fork(
            before=self._hold, after_in_parent=self._release, after_in_child=self._begin_child
        )

    def add(self, user: Locked) -> None:
        self._objects.add(user)

    def _hold(self) -> None:
        locks = [user.fork_lock() for user in self._objects]
        self._held = [lock for lock in locks if lock.acquire(timeout=_PATIENCE)]

    def _release(self) -> None:
        held, self._held = self._held, []
        for lock in held:
            lock.release()

    def _begin_child(self) -> None:
        Home.leave()
        self._release()
        for user in self._objects:
            user.renew_lock()


_GUARD = _Guard()


def guard(user: Locked) -> None:
    """Hold its lock over every fork from now on, for as long as it lives."""
    _GUARD.add(user)
