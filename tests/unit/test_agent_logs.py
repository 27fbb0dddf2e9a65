"""Logs that rotate, and their lines by cursor."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.agent.logs import read_log
from controlplane.agent.shards.output import RotatingLog, last_lines


def test_a_log_rotates_and_reads_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RotatingLog(path, 100, 3)
    for number in range(40):
        log.write(f"line {number:02}\n".encode())
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["log", "log.1", "log.2"]
    assert all(entry.stat().st_size <= 100 for entry in tmp_path.iterdir())
    assert last_lines(path, 3, 1000) == ["line 37", "line 38", "line 39"]
    assert len(last_lines(path, 1000, 1 << 20)) > 20
    assert log.last_output().splitlines()[-1] == "line 39"
    assert log.lost == 0


def test_a_log_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "log"
    log = RotatingLog(path, 100, 2)
    log.write(b"one\n")
    assert log.lost == 4
    path.parent.mkdir()
    log.write(b"two\n")
    assert path.read_bytes() == b"two\n"
    assert log.last_output() == "one\ntwo"
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    RotatingLog(tmp_path / "link", 100, 2).write(b"x")
    assert not (tmp_path / "precious").exists()


def test_following_a_log_over_rotations_loses_and_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RotatingLog(path, 200, 50)
    log.write(b"first\n")
    excerpt = read_log(path, 10)
    seen, written = list(excerpt.lines), ["first"]
    for number in range(100):
        text = f"line {number} {'x' * (number % 60)}"
        log.write(text[:5].encode())
        if number % 3 == 0:  # in the middle of a line
            excerpt = read_log(path, 4, excerpt.cursor)
            seen += excerpt.lines
        log.write(text[5:].encode() + b"\n")
        written.append(text)
    while (excerpt := read_log(path, 4, excerpt.cursor)).lines:
        seen += excerpt.lines
    assert "".join(seen) == "".join(written)


def test_a_cursor_whose_file_is_gone_goes_on_with_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RotatingLog(path, 50, 2)
    log.write(b"old\n")
    cursor = read_log(path, 10).cursor
    for number in range(50):
        log.write(b"line %d\n" % number)
    lines = read_log(path, 1000, cursor).lines
    assert lines[-1] == "line 49"
    assert lines == [f"line {number}" for number in range(50 - len(lines), 50)]


@pytest.mark.parametrize("cursor", ["x", "1", ":", "-1:0:00000000", "1:2:3", "9" * 30 + ":1:00000000"])
def test_a_cursor_that_is_none_reads_the_newest(tmp_path: Path, cursor: str) -> None:
    (tmp_path / "log").write_bytes(b"a\nb\n")
    assert read_log(tmp_path / "log", 1, cursor).lines == ["b"]
    assert read_log(tmp_path / "none", 5, cursor).lines == []


def test_a_log_without_an_end_of_line_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 1_000_000)
    assert read_log(tmp_path / "log", 5).lines == []
    (tmp_path / "log").write_bytes(b"y\n" * 1_000_000)
    assert len(read_log(tmp_path / "log", 10_000_000).lines) == 5000
