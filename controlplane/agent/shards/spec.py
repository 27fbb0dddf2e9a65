"""What a shard is to run with: the leader's order, turned into a command and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from controlplane.model.catalogue import DRAIN_SIGNALS

SHARD_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MAX_WORDS = 1024
MAX_WORD = 128 * 1024 - 1  # Linux' limit of one argument


class SpecError(ValueError):
    """An order that can't be carried out; the message says which part of it and why."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One start of a shard. Sizes are bytes, times seconds.

    `argv` is complete and `env` is all that the engine gets. `health_path` is asked at `address`:`port` by
    GET; empty: ready as soon as it runs. To drain, `drain_path` is POSTed to (200 = nothing runs any more,
    202 = ask again) or `drain_signal` is sent; with neither, the port's connections are watched. `weights` is
    the path in use, or empty. `cgroup` is a cgroup v2 directory that the engine joins, or empty.
    """

    shard_id: str
    replica_id: str
    model: str
    profile: str
    generation: int
    engine: str
    engine_version: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    gpu_uuids: tuple[str, ...] = ()
    weights: str = ""
    address: str = "127.0.0.1"
    port: int = 0
    health_path: str = ""
    drain_path: str = ""
    drain_signal: str = ""
    memory_bytes: int = 0
    cgroup: str = ""
    stop_seconds: float = 10.0
    log_bytes: int = 16 << 20
    log_files: int = 4

    def to_json(self) -> dict[str, Any]:
        """The spec as a record."""
        return asdict(self)


def check(spec: ShardSpec) -> ShardSpec:
    """The spec itself when it can be carried out. Raises SpecError."""
    if not SHARD_ID.fullmatch(spec.shard_id):
        raise SpecError(
            f"shard id {spec.shard_id[:80]!r}: use 1 to 128 of A-Z a-z 0-9 . _ -, not . or - first"
        )
    if not spec.argv or not spec.argv[0]:
        raise SpecError(f"shard {spec.shard_id} has no command")
    if len(spec.argv) + len(spec.env) > MAX_WORDS:
        raise SpecError(f"shard {spec.shard_id}: more than {MAX_WORDS} arguments and variables")
    for word in (*spec.argv, *spec.env.values(), spec.cwd):
        if "\0" in word or len(word.encode("utf-8", "replace")) > MAX_WORD:
            raise SpecError(f"shard {spec.shard_id}: {word[:40]!r} has a NUL or is too long for a process")
    for name in spec.env:
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"shard {spec.shard_id}: {name[:40]!r} is not the name of a variable")
    _check_fields(spec)
    return spec


def _check_fields(spec: ShardSpec) -> None:
    rules = {
        "port": 0 <= spec.port <= 65535,
        "generation": spec.generation >= 0,
        "health_path": not spec.health_path or _is_url_path(spec.health_path),
        "health_path without a port": not spec.health_path or spec.port > 0,
        "drain_path": not spec.drain_path or (_is_url_path(spec.drain_path) and spec.port > 0),
        "drain_signal": not spec.drain_signal or spec.drain_signal in DRAIN_SIGNALS,
        "drain_path and drain_signal at once": not (spec.drain_path and spec.drain_signal),
        "memory_bytes": spec.memory_bytes >= 0,
        "stop_grace_seconds": 0 <= spec.stop_seconds <= 86_400,
        "log_bytes": 4096 <= spec.log_bytes <= 1 << 32,
        "log_files": 1 <= spec.log_files <= 100,
        "gpu_uuids": len(set(spec.gpu_uuids)) == len(spec.gpu_uuids),
        "cwd": spec.cwd.startswith("/"),
    }
    wrong = [name for name, holds in rules.items() if not holds]
    if wrong:
        raise SpecError(f"shard {spec.shard_id}: {', '.join(wrong)} can't be used")


def _is_url_path(text: str) -> bool:
    return text.startswith("/") and text.isascii() and text.isprintable() and " " not in text


def spec_from_json(document: Mapping[str, Any]) -> ShardSpec:
    """Read and check what `to_json` wrote; a record may have been edited or damaged. Raises SpecError.

    Fields that only a newer version knows are left out: no shard ends because its agent was taken back.
    """
    known = {entry.name for entry in fields(ShardSpec)}
    try:
        values = {name: value for name, value in dict(document).items() if name in known}
        for name in ("argv", "gpu_uuids"):
            values[name] = tuple(values[name])
        spec = ShardSpec(**values)
        for entry in fields(ShardSpec):
            _check_type(entry.name, getattr(spec, entry.name))
        return check(spec)
    except (TypeError, KeyError, AttributeError) as error:
        raise SpecError(f"not the record of a shard: {error}") from error


_NUMBERS = {"generation", "port", "memory_bytes", "log_bytes", "log_files"}


def _check_type(name: str, value: object) -> None:
    if name in _NUMBERS:
        right = type(value) is int
    elif name == "stop_seconds":
        right = isinstance(value, int | float)
    elif name == "env":
        right = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    elif name in {"argv", "gpu_uuids"}:
        right = isinstance(value, tuple) and all(isinstance(text, str) for text in value)
    else:
        right = isinstance(value, str)
    if not right:
        raise TypeError(f"{name} has the type {type(value).__name__}")
