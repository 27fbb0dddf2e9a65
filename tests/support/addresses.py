"""Loopback networks for tests: each test takes a random 127.x.y.0/24, so that no two tests meet."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopbackNet:
    """127.`second`.`third`.0/24."""

    second: int
    third: int

    @classmethod
    def pick(cls) -> LoopbackNet:
        """A network at random, never 127.0.0.0/16. Seeded by the system, not by a test's `random.seed`."""
        source = random.SystemRandom()
        return cls(source.randint(1, 254), source.randint(0, 254))

    def host(self, number: int) -> str:
        """The address of host 1 to 254."""
        if not 1 <= number <= 254:
            raise ValueError(f"host number {number} is not in 1..254")
        return f"127.{self.second}.{self.third}.{number}"


def free_port(host: str) -> int:
    """A TCP port that is free on `host` at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
