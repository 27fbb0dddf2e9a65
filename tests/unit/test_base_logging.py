"""Log lines: one event a line, in both forms, without secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from controlplane.base.logging import LogFormat, configure_logging, get_logger


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


def configured(fmt: LogFormat = "json", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging("test", fmt=fmt, level=level, stream=stream)  # type: ignore[arg-type]
    return stream


def test_json_lines_carry_event_component_and_fields() -> None:
    early = get_logger("part")
    stream = configured()
    early.warning("Cluster stale", reason="no answer\nin time", revision=7)
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event["event"] == "Cluster stale"
    assert (event["level"], event["program"], event["component"]) == ("warning", "test", "part")
    assert (event["reason"], event["revision"]) == ("no answer\nin time", 7)
    assert event["time"].endswith("Z")


def test_key_value_lines() -> None:
    stream = configured("keyvalue")
    get_logger("part").info("Using cluster mode", hosts=3)
    (line,) = stream.getvalue().splitlines()
    assert 'level=info event="Using cluster mode"' in line
    assert "hosts=3" in line


def test_standard_logging_comes_out_alike() -> None:
    stream = configured()
    logging.getLogger("asyncio").error("Task failed: %s", "x")
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"], event["logger"]) == ("Task failed: x", "error", "asyncio")


def test_level_and_secrets() -> None:
    stream = configured(level="warning")
    log = get_logger("part")
    log.info("not shown")
    log.error("shown", join_token="abc", namespace_secret="def", key="visible")
    event = json.loads(stream.getvalue())
    assert event["event"] == "shown"
    assert "abc" not in stream.getvalue()
    assert "def" not in stream.getvalue()
    assert event["key"] == "visible"


def test_exceptions_are_on_the_line() -> None:
    stream = configured()
    try:
        [].pop()
    except IndexError:
        get_logger("part").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "IndexError: pop from empty list" in json.loads(line)["exception"]


@pytest.mark.parametrize(("fmt", "level"), [("xml", "info"), ("json", "loud")])
def test_unknown_words_are_refused(fmt: str, level: str) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        configure_logging("test", fmt=fmt, level=level)  # type: ignore[arg-type]
