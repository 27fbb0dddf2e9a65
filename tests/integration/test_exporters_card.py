"""akv-card-exporter over HTTP: state of cards, absence when the CLI fails, and scrapes that never pile up."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.cluster.metric_source import parse_sample
from controlplane.exporters.card import main
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_main
from tests.support.cluster_hosts import ClusterHost, card
from tests.support.procs import Program, python_module, wait_until

PORT = 7891


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHost]:
    net = LoopbackNet.pick()
    host = ClusterHost("storage-1", net.host(1), tmp_path_factory.mktemp("exporter"))
    host.set_cards(card(0))
    host.start_exporter()
    yield host
    host.stop()


def scrape(host: ClusterHost) -> str:
    with urllib.request.urlopen(f"http://{host.address}:{PORT}/metrics", timeout=15) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


def shows(host: ClusterHost, line: str) -> None:
    wait_until(lambda: line in scrape(host).splitlines(), line)


def test_running_and_stopped_cards(host: ClusterHost) -> None:
    host.set_cards(card(0), card(1, state="stopped"))
    shows(host, 'xdp_service_status{serial="L0P1",xdp="xdp1"} 0.0')
    text = scrape(host)
    assert 'xdp_service_status{serial="L0P0",xdp="xdp0"} 1.0' in text
    assert "card_cli_up 1.0" in text
    assert parse_sample(text.encode()).status == {"L0P0": 1.0, "L0P1": 0.0}


@pytest.mark.parametrize("script", ["exit 1", "echo garbage"])
def test_a_failing_cli_is_an_absent_metric_and_an_error_metric_never_0(
    host: ClusterHost, script: str
) -> None:
    host.set_cli(script)
    shows(host, "card_cli_up 0.0")
    text = scrape(host)
    assert "xdp_service_status{" not in text
    failures = next(line for line in text.splitlines() if line.startswith("card_cli_failures_total"))
    assert float(failures.split()[1]) >= 1
    host.set_cards(card(0))
    shows(host, 'xdp_service_status{serial="L0P0",xdp="xdp0"} 1.0')


def test_many_scrapes_of_a_slow_cli_share_one_call(host: ClusterHost) -> None:
    calls = host.directory / "calls"
    listing = json.dumps({"cards": [card(0)]})
    host.set_cli(f"echo x >> {calls}; sleep 0.5; echo '{listing}'")
    wait_until(lambda: scrape(host) and calls.exists(), "the slow CLI is in use")
    before = len(calls.read_text().split())
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: scrape(host), range(16)))
    assert all("xdp_service_status{" in text for text in texts)
    assert len(calls.read_text().split()) - before <= 2 + (time.monotonic() - began) / 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "192.0.2.1"), "not a loopback"),
        (("--listen", "1:2:3"), "colon"),
        (("--listen", "2001:db8::1,7891"), "not a loopback"),
        (("--listen", "::1,port"), "not a number"),
        (("--tls-dir", "/nowhere", "--insecure"), "drop one"),
        (("--card-cli", ""), "is empty"),
        (("--card-cli", "list 'x"), "balance its quotes"),
        (("--timeout", "nan"), "600"),
        (("--max-age", "inf"), "600"),
    ],
)
def test_wrong_usage_is_refused(arguments: tuple[str, ...], words: str) -> None:
    refused = run_main(main, "akv-card-exporter", *arguments)
    assert refused.returncode == 2
    assert words in " ".join(refused.stderr.replace("│", " ").split())


def test_a_taken_address_is_a_clear_refusal(host: ClusterHost, tmp_path: Path) -> None:
    with Program(
        python_module("controlplane.exporters.card", "--listen", f"{host.address}:{PORT}")
    ) as program:
        assert program.wait_exit() == 2
        assert "can't be served" in program.tail()
