"""In what order competitors have their turns."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def in_turn(competitors: Iterable[T], repeat: int, case: object) -> list[T]:
    """All of them in a random order, another one for each repeat and case, and the same ones in each run.

    What came before leaves the machine, its caches and clock in another state: nobody always follows the same
    one, or always comes last.
    """
    there = list(competitors)
    return random.Random(f"{repeat} {case}").sample(there, len(there))
