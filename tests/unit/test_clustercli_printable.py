"""Nothing that a node, an engine or a log says steers the terminal of who reads it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clustercli.commands import fleet
from clustercli.printable import printable, printable_document, printable_line
from clustercli.session import Output, Session
from clustercli.target import Target


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nü 汉", "plain\ttext\nü 汉"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x08\x7f\x9b2J", "a\\rb\\x08\\x7f\\x9b2J"),
        ("evil\u202etxt", "evil\\u202etxt"),
        ("\x1b[31mred", "\\x1b[31mred"),
    ],
)
def test_what_could_steer_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable_document({"a": [text, 1, None, {"b": text}]}) == {"a": [shown, 1, None, {"b": shown}]}


def test_a_line_of_a_log_keeps_its_colours_and_no_more() -> None:
    line = "\x1b[1;32mINFO\x1b[0m ready \x1b[2J\x1b]52;c;aGk=\x07"
    assert printable_line(line) == "\x1b[1;32mINFO\x1b[0m ready \\x1b[2J\\x1b]52;c;aGk=\\x07\x1b[0m"
    assert printable_line("INFO") == "INFO"


def test_what_goes_on_fast_is_followed_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits a second for each answer may be rotated away."""
    answers = iter([["x" * 1000] * 250, ["y" * 1000] * 250, ["the end"]])
    pauses: list[float] = []

    def answer(*_: Any) -> dict[str, Any]:
        return {"lines": next(answers), "cursor": "1", "sources": []}

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet, "_logs", answer)
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        fleet._follow(Session(Target("h"), Output.TABLE, None), "gpu-1", "agent", "0")
    assert pauses == [1.0, 0.0, 0.0, 1.0]
    assert capsys.readouterr().out.splitlines()[-1] == "the end"
