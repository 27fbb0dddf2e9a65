"""Every command of docs/install.md's first part, run from top to bottom: a newcomer's three hosts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.procs import ROOT, python_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PAGE = ROOT / "docs" / "install.md"
# Ends what the page started also when it stops half-way.
CLEAN_UP = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"


def commands(directory: Path, prefix: str) -> str:
    """The page's commands in a directory and with addresses of this test's own, at a quicker pace."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    script = "\n".join(blocks)
    assert "127.0.1." in script
    for theirs, ours in (
        ("/tmp/three-hosts", str(directory)),
        ("127.0.1.", prefix),
        ("AWC_METRICS=exporters", "AWC_METRICS=exporters\nAWC_CYCLE_SECONDS=0.5"),
    ):
        script = script.replace(theirs, ours)
    return f"set -eu\n{CLEAN_UP}\n{script}"


def test_a_newcomer_brings_up_three_hosts_by_the_page_alone(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    environment = python_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    prefix = loopback_net.host(1).removesuffix("1")
    script = commands(tmp_path / "three", prefix)
    with (tmp_path / "output").open("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            code = process.wait(300)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        output.seek(0)
        shown = output.read()
    assert code == 0, shown
    for words in (
        "Cluster kv-cache is created",
        "The host is in cluster kv-cache",
        "etcd quorum of 3, tolerates 1 failures",
        "checked",
        "1 sick",
        "is healthy: its storage service runs",
        "voter",
    ):
        assert words in shown, shown
