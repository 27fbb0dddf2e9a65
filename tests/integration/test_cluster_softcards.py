"""Real software cards under a host: listed, sick when killed, healthy when back."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import ask_cluster, cards_of, cli_json, cluster_hosts
from tests.support.procs import Program, wait_until

pytestmark = pytest.mark.slow
BESIDE = Path(sys.executable).parent / "akv-softcard"
SOFTCARD = str(BESIDE) if BESIDE.exists() else shutil.which("akv-softcard")


def start(device: str, address: str, state_dir: Path) -> Program:
    arguments = [
        "--id",
        device,
        "--serial",
        "L0P0",
        "--nqn",
        "nqn.2026-01.test:L0P0",
        "--listen",
        f"{address}:0",
    ]
    tail = ["--state-dir", str(state_dir), "--capacity", "16M"]
    program = Program([str(SOFTCARD), "serve", *arguments, *tail], name=device)
    program.wait_event("ready")
    return program


@pytest.mark.skipif(SOFTCARD is None, reason="akv-softcard is not built")
def test_a_softcard_is_listed_killed_and_comes_back_under_another_name(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    cards = tmp_path / "softcards"
    cli = f"{SOFTCARD} list --json --state-dir {cards}"

    with (
        start("xdp0", loopback_net.host(11), cards) as first,
        cluster_hosts(tmp_path, loopback_net, 1) as (host,),
    ):
        host.set_cli(f"exec {cli}")
        host.start_exporter()
        cli_json(host, "create_cluster", "--name", "kv-cache")

        def wait_card(right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            return wait_until(
                lambda: next(
                    (c for s, c in cards_of(ask_cluster(host)).items() if s == "L0P0" and right(c)), None
                ),
                "card L0P0 as wanted",
                every=0.1,
            )

        before = wait_card(lambda c: c["health_xdp"] == 0)
        assert before["addresses"][0].startswith(f"tcp:{loopback_net.host(11)}:")
        first.kill()
        wait_card(lambda c: c["state"] == "stopped" and c["health_xdp"] == 1)
        with start("xdp5", loopback_net.host(12), cards):
            # Health and the host's list are two sources: either may tell of the card first.
            after = wait_card(lambda c: c["health_xdp"] == 0 and c["device"] == "xdp5")
            assert after["slot"] == before["slot"]
            assert after["addresses"][0].startswith(f"tcp:{loopback_net.host(12)}:")
            devices = [c["device"] for h in ask_cluster(host)["hosts"] for c in h["cards"]]
            assert devices == ["xdp5"]
