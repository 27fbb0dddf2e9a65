"""Structured logging: one event a line on stderr, as JSON or as key=value, under stable event names.

The event text is the name that operators search for; everything variable is a field beside it. Records of the
standard library's `logging` (grpc, asyncio, aiohttp) come out in the same form.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO, get_args

import structlog
from structlog.typing import Processor

LogFormat = Literal["json", "keyvalue"]
LogLevel = Literal["debug", "info", "warning", "error"]

_SECRET_WORDS = ("secret", "token", "password", "private_key", "hmac")
_HIDDEN = "<hidden>"


def configure_logging(
    program: str, *, fmt: LogFormat = "json", level: LogLevel = "info", stream: TextIO | None = None
) -> None:
    """Set up logging of the whole process. Call it once, first thing in `main`.

    Raises ValueError when `fmt` or `level` is not one of the allowed words.
    """
    _check("log format", fmt, get_args(LogFormat))
    _check("log level", level, get_args(LogLevel))
    target = stream if stream is not None else sys.stderr
    threshold = getattr(logging, level.upper())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _ProgramName(program),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        hide_secrets,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, _renderer(fmt)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(shared, _renderer(fmt), threshold, target)


def get_logger(component: str) -> Any:
    """A logger whose lines carry `component`. Safe at module level: it follows `configure_logging`."""
    return structlog.get_logger(component=component)


def hide_secrets(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor: the values of fields whose name tells of a secret are never written."""
    for name in event:
        if any(word in name.lower() for word in _SECRET_WORDS):
            event[name] = _HIDDEN
    return event


class _ProgramName:
    """Processor that adds `program` to each line."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __call__(
        self, _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault("program", self._program)
        return event


def _check(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value!r} is unknown: choose one of {', '.join(allowed)}")


def _renderer(fmt: LogFormat) -> Processor:
    if fmt == "json":
        return structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    return structlog.processors.LogfmtRenderer(key_order=["time", "level", "event"], drop_missing=True)


def _route_standard_logging(shared: list[Processor], renderer: Processor, level: int, stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
