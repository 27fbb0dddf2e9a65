"""Every command of docs/install.md's first part, run from top to bottom: a newcomer's three hosts.

What each prints is what the page shows, but for what differs from run to run.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.procs import ROOT, python_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

PAGE = ROOT / "docs" / "install.md"
# The whole page, on a machine that does much else; a quiet one needs a sixth of it.
PAGE_SECONDS = 600
# Ends what the page started also when it stops half-way.
CLEAN_UP = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"
MARK = "@@ block"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_EVENT = re.compile(r"N TIME HOST (leader|health|membership|host|card|alarm) \S.*")
# What differs from run to run, or with the load of the machine, and what stands for it.
_VARIES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
    (r"akv1\.\S+", "TOKEN"),
    (r"\b[0-9a-f]{16}\b", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?Z", "TIME"),
    (r"\d+\.\d (GiB|ms)", r"N \1"),
    (r"no etcd on PATH: .* first start|\S+ is etcd [\d.]+", "ETCD"),
    # A slow disk's row has more to say, and goes on in the next lines.
    (r"(?m)^.*disk-latency .*$(?:\n {20,}\S.*$)*", "disk-latency"),
    (r"(not )?ready; failed: \d, warnings: \d", "VERDICT"),
    (r" \(leader\)", ""),
    (r"leader host-\d", "leader HOST"),
    (r"its host host-3 says that it is stopped|its storage service does not run.*", "WHY"),
    (r"(?m)^ *\d+  TIME +host-\d ", "N TIME HOST "),
    (r"─+", "─"),
    (r"[ \t]+", " "),
    (r"(?m)^ | $", ""),
)


@dataclass(frozen=True)
class Block:
    """One block of commands, and what the page says that it prints."""

    commands: str
    output: str


def blocks() -> list[Block]:
    found = [Block(*pair) for pair in _BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    assert len(found) >= 8
    return found


def script(page: list[Block]) -> str:
    """The blocks one after the other in one shell, each behind a mark."""
    told = (f"echo '{MARK} {number}'\n{block.commands}" for number, block in enumerate(page))
    # On a busy machine the disk may be too slow for etcd, and is told so.
    text = "\n".join(told).replace("admin.sock doctor\n", "admin.sock doctor || [ $? = 1 ]\n")
    assert "|| [ $? = 1 ]" in text
    return f"set -eu\n{CLEAN_UP}\n{text}"


def in_place(text: str, directory: Path, prefix: str) -> str:
    """The page in a directory and with addresses of this test's own, at a quicker pace."""
    for theirs, ours in (
        ("/tmp/three-hosts", str(directory)),
        ("127.0.1.", prefix),
        ("AWC_METRICS=exporters", "AWC_METRICS=exporters\nAWC_CYCLE_SECONDS=0.5"),
    ):
        assert theirs in text
        text = text.replace(theirs, ours)
    return text


def run(commands: str, output: Path) -> str:
    """What the commands print, on both streams."""
    environment = python_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    with output.open("w+", encoding="utf-8") as file:
        process = subprocess.Popen(
            ["bash", "-c", commands], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        )
        try:
            code: int | str = process.wait(PAGE_SECONDS)
        except subprocess.TimeoutExpired:
            code = f"not at its end within {PAGE_SECONDS} s"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        file.seek(0)
        shown = file.read()
    assert code == 0, f"{code}\n{shown}"
    return shown


def plain(text: str) -> list[str]:
    """The lines without what varies; events, of which there may be other ones, are only looked at."""
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return [line for line in text.splitlines() if line and not _EVENT.fullmatch(line)]


def test_a_newcomer_brings_up_three_hosts_by_the_page_alone(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    page, directory = blocks(), tmp_path / "three"
    prefix = loopback_net.host(1).removesuffix("1")
    shown = run(in_place(script(page), directory, prefix), tmp_path / "output")
    shown = shown.replace(str(directory), "/tmp/three-hosts").replace(prefix, "127.0.1.")
    parts = re.split(rf"^{MARK} \d+\n", shown, flags=re.MULTILINE)[1:]
    for block, printed in zip(page, parts, strict=True):
        assert plain(printed) == plain(block.output), block.commands
    assert "is healthy: its storage service runs" in shown, "the events tell of the card that came back"
