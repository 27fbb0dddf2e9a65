"""What a measured cache offers to the worker. Standard library only: it runs in the peers' environment."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence


class Cache(ABC):
    """One client of one cache. A call ends when its whole batch is done; a failed one raises.

    `memory` is the engine's host memory: blocks are put from it and got into it, at `offsets`.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory

    @abstractmethod
    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        """Store `size` bytes from each offset under its key."""

    @abstractmethod
    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        """Read the value of each key to its offset. Raises LookupError for a miss."""

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> int:
        """How many of the keys are there."""

    @abstractmethod
    def clear(self, keys: Sequence[str]) -> None:
        """Remove the keys, so that the next case has room; not measured."""

    def fill(self, offsets: Sequence[int], size: int) -> None:  # noqa: B027
        """Take the memory's content over, where the cache has memory of its own; not measured."""

    def views(self, offsets: Sequence[int], size: int) -> list[memoryview]:
        """Where the blocks are that are put and got; not measured."""
        memory = memoryview(self.memory)
        return [memory[offset : offset + size] for offset in offsets]

    def close(self) -> None:  # noqa: B027
        """End the client."""
