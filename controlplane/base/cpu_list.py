"""CPU lists as operators write them: `100-104`, `0,2,4-6`."""

from __future__ import annotations

import re

MAX_CPU = 4095

_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers in the order written. Raises ValueError with what is wrong and what to write."""
    cpus: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f'has the part {part.strip()!r}; write cores as "4-7" or "0,2,5-6"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"has the range {part.strip()} backwards; write {last}-{first}")
        if last > MAX_CPU:
            raise ValueError(f"has core {last}; a core number is at most {MAX_CPU}")
        cpus += range(first, last + 1)
    twice = sorted({cpu for cpu in cpus if cpus.count(cpu) > 1})
    if twice:
        raise ValueError(f"has core {twice[0]} twice; name each core once")
    return tuple(cpus)
