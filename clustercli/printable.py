"""Text from elsewhere for a terminal: nothing in it may steer the terminal.

Nodes, engines and their logs say what they like; an escape sequence among it would be obeyed by the terminal
of whoever reads it.
"""

from __future__ import annotations

import re
from typing import Any

# Control characters but for tab and newline, and what turns the direction of writing.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Colours, as engines write them into their logs; they end with the line.
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_PLAIN = "\x1b[0m"


def printable(text: str) -> str:
    """The text with what could steer a terminal written out, as `\\x1b`."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_line(text: str) -> str:
    """A line of a log, which keeps its colours."""
    parts = _COLOUR.split(text)
    shown = "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))
    return shown + _PLAIN if len(parts) > 1 else shown


def printable_document(value: Any) -> Any:
    """A document of an answer with every text in it printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: printable_document(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [printable_document(inner) for inner in value]
    return value
