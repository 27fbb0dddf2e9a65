"""Whether adapters can be used, and not only be seen: pyverbs, where it is installed, opens each."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Verbs:
    """What is used of pyverbs: the class that opens an adapter, and the base of its errors."""

    context: Any
    error: type[Exception]


def load_pyverbs() -> Verbs | None:
    """pyverbs, or None where it is not installed."""
    try:
        device = importlib.import_module("pyverbs.device")
        errors = importlib.import_module("pyverbs.pyverbs_error")
    except ImportError:
        return None
    return Verbs(device.Context, errors.PyverbsError)


def adapter_problems(verbs: Verbs | None, hcas: Iterable[str]) -> list[str]:
    """A text for each adapter of /sys that can't be opened, as in a container without its devices."""
    if verbs is None:
        return []
    problems = []
    for hca in sorted(set(hcas)):
        try:
            with verbs.context(name=hca) as context:
                context.query_device()
        except (verbs.error, OSError) as error:
            problems.append(f"adapter {hca} can't be opened: {error}")
    return problems
