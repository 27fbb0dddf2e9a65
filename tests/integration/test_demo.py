"""`akv demo`: the whole product on one machine, kept promises, a broken one, and an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.apps.demo.report import NAMES
from tests.support.procs import ROOT, python_environment, wait_until

REQUESTS = 60
# For one that hangs: a slow hour of a busy machine makes twice as much of the 50 s that it takes.
WATCHDOG_SECONDS = 400


def _command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "controlplane.apps.akv", *map(str, arguments)]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Shorter than pytest's: a Unix socket's path may have 107 bytes, and the demo's lie below it."""
    with tempfile.TemporaryDirectory(prefix="akv-") as directory:
        yield Path(directory)


def _environment(tmp_path: Path) -> dict[str, str]:
    """The demo makes its directory below the test's."""
    return python_environment({"TMPDIR": str(tmp_path)})


def _processes_below(directory: Path) -> list[str]:
    """Command lines of processes that name the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(directory) in line:
                found.append(line)
    return found


@contextmanager
def _demo(tmp_path: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A running demo; interrupted when the test is done with it, killed when it hangs."""
    process = subprocess.Popen(
        _command("demo", *arguments),
        cwd=ROOT,
        env=_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(WATCHDOG_SECONDS, process.send_signal, [signal.SIGINT])
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def _trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    make = [sys.executable, "-m", "bench.main", "generate-trace", "--requests", str(REQUESTS)]
    subprocess.run([*make, "--output", str(path)], cwd=ROOT, env=python_environment(), check=True, timeout=60)
    return path


@pytest.mark.slow
def test_seven_promises_are_kept_and_nothing_is_left_behind(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ("--report", report, "--trace", _trace(tmp_path), "--block-bytes", "4096")
    with _demo(tmp_path, *arguments) as process:
        output, _ = process.communicate()
        assert process.returncode == 0, output
    result = json.loads(report.read_text())
    assert [(promise["name"], promise["kept"]) for promise in result["promises"]] == [
        (n, True) for n in NAMES
    ]
    assert result["wrong_blocks"] == result["client_errors"] == 0
    assert result["requests"] == REQUESTS
    assert result["measured_hit_ratio"] == result["expected_hit_ratio"] > 0
    assert set(result["spread"]) == {"L0P0", "L1P0", "L2P0", "L0P1"}
    assert result["get_block_us"]["p50"] > 0
    assert "wrong blocks: 0" in output
    assert _processes_below(tmp_path) == []
    assert not list(tmp_path.glob("akv-demo-*"))


@pytest.mark.slow
def test_a_card_that_lost_its_blocks_breaks_a_promise_and_an_interrupt_ends_everything(
    tmp_path: Path,
) -> None:
    verdict = ""
    with _demo(tmp_path, "--trace", _trace(tmp_path), "--block-bytes", "4096") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "card L1P0 killed" in line:
                [media] = tmp_path.glob("akv-demo-*/media/L1P0")
                media.unlink()
            if "promise 3: kept" in line or "promise 3: BROKEN" in line:
                verdict = line
                break
        assert "BROKEN" in verdict
        assert "0 wrong blocks" in verdict
        assert len(_processes_below(tmp_path)) > 8
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    wait_until(lambda: _processes_below(tmp_path) == [], "every process was ended")
    assert not list(tmp_path.glob("akv-demo-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--requests", "10"), "at least 50"),
        (("--requests", "x"), "'x' is not a whole number"),
        (("--block-bytes", "1"), "not between 64"),
        (("--report", "/none/report.json"), "its folder does not exist"),
        (("--report", "/proc/report.json"), "its folder can't be written"),
        (("--report", "/tmp"), "is a directory; name a file in it"),
        (("--trace", "/none.jsonl"), "/none.jsonl"),
        (("--trace", "{bad}"), "bad.jsonl:1: not JSON"),
        (("--trace", "{short}"), "has 1 requests: the story needs 50"),
    ],
)
def test_what_can_not_run_says_why_and_starts_nothing(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    bad, short = tmp_path / "bad.jsonl", tmp_path / "short.jsonl"
    bad.write_text("no\n")
    row = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}
    short.write_text(json.dumps(row) + "\n")
    filled = [argument.format(bad=bad, short=short) for argument in arguments]
    done = subprocess.run(
        _command("demo", *filled),
        cwd=ROOT,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.glob("akv-demo-*"))


def test_help_and_version() -> None:
    for arguments, text in ((("--version",), "akv "), (("demo", "--help"), "exit codes")):
        done = subprocess.run(
            _command(*arguments),
            cwd=ROOT,
            env=python_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert text in done.stdout
