"""Turns what pydantic finds wrong in a configuration into one line a problem: key, value and remedy."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(r"(\d+)\s*(ms|s|m)", re.IGNORECASE | re.ASCII)
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000}
# Bounded in depth too: aliases in YAML can nest a short text into an endless value.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2
_NOT_A_NUMBER = frozenset({"int_type", "int_parsing", "int_from_float"})
_REASONS = {
    "bool_type": "is not true or false; write true or false without quotes",
    "string_type": "is not text; write it in quotes",
    "list_type": "is not a list; write one entry a line, each behind a dash",
    "model_type": "is not a mapping; write KEY: VALUE lines",
    "model_attributes_type": "is not a mapping; write KEY: VALUE lines",
    "literal_error": "is not allowed; write {expected}",
    "greater_than_equal": "is out of range; write at least {ge}",
    "less_than_equal": "is out of range; write at most {le}",
    "too_long": "has {actual_length} entries; at most {max_length} are possible",
    "too_short": "has {actual_length} entries; write at least {min_length}",
}


class ConfigError(Exception):
    """A configuration that can't be used. `problems`: one line each, with file, key, value and remedy."""

    def __init__(self, origin: str, problems: Collection[str]) -> None:
        self.problems = tuple(f"{origin}: {' '.join(problem.split())}" for problem in problems)
        super().__init__("\n".join(self.problems))


def explain(error: ValidationError, keys: Collection[str], misplaced: Mapping[str, str]) -> list[str]:
    """One line for each problem, in the order of the file's model.

    `keys` are the known keys, for suggestions; `misplaced` maps a key that belongs elsewhere to the remedy.
    """
    return [_line(detail, keys, misplaced) for detail in error.errors(include_url=False)]


def _line(detail: ErrorDetails, keys: Collection[str], misplaced: Mapping[str, str]) -> str:
    key = _key(detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key}: {_shown(detail['input'])} under an unknown key; {_suggest(key, keys, misplaced)}"
    if detail["type"] == "missing":
        return f"{key}: is missing; add it"
    return f"{key}: {_shown(detail['input'])} {_reason(detail, key)}"


def _key(loc: tuple[int | str, ...]) -> str:
    """`storage_devices[1].traddr` from pydantic's location."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{_name(part)}" if text else _name(part)
    return text


def _name(key: str) -> str:
    """The key as it may go to a terminal; a long one or one with control characters, quoted and cut short."""
    return key if key.isprintable() and len(key) <= _SHORT.maxstring else _SHORT.repr(key)


def _shown(value: object) -> str:
    """The value as one short line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "(no value)"
    return _SHORT.repr(value)


def _suggest(key: str, keys: Collection[str], misplaced: Mapping[str, str]) -> str:
    name = key.rpartition(".")[2]
    if name in misplaced:
        return misplaced[name]
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "remove it"


def _reason(detail: ErrorDetails, key: str) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _NOT_A_NUMBER:
        return f"is not a whole number; {_number_remedy(key, detail['input'])}"
    template = _REASONS.get(kind, "can't be used; correct it: " + detail["msg"].replace("{", "{{"))
    return template.format_map(context)


def _number_remedy(key: str, value: object) -> str:
    """What to write instead, computed where the operator wrote a unit."""
    text = str(value).strip()
    if key.endswith("_size"):
        size = _SIZE.fullmatch(text)
        example = int(size[1]) * _UNITS[size[2].lower()] if size else 10 * 2**30
        return f"write the size in bytes without a unit or quotes, {example}"
    if key.endswith("_ms"):
        time = _TIME.fullmatch(text)
        example = int(time[1]) * _MILLISECONDS[time[2].lower()] if time else 500
        return f"write milliseconds without a unit or quotes, {example}"
    return "write digits alone, without quotes"
