"""The leader's metric source against a real Prometheus that scrapes exporters over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.cluster.evidence import Evidence, HostEndpoints, PathLoss
from controlplane.cluster.monitoring import write_changed
from controlplane.cluster.prometheus_files import HostTargets, prometheus_config, scrape_files
from controlplane.cluster.prometheus_source import PrometheusSource
from tests.support.addresses import LoopbackNet
from tests.support.http_exporter import HttpExporter, card_status, ping_loss
from tests.support.procs import Program, wait_until
from tests.support.prometheus import PORT, is_ready, promtool, start_prometheus

pytestmark = pytest.mark.slow
SCRAPE_SECONDS = 0.5
MAX_AGE = 3 * SCRAPE_SECONDS


@dataclass
class Watch:
    """Two hosts' exporters, and the Prometheus that scrapes them."""

    net: LoopbackNet
    directory: Path
    exporters: dict[str, HttpExporter]
    server: Program
    address: str

    @property
    def hosts(self) -> dict[str, HostEndpoints]:
        return {name: self.endpoints(name) for name in ("s1", "s2")}

    def endpoints(self, name: str) -> HostEndpoints:
        number = int(name[1:])
        return HostEndpoints(f"{self.net.host(number)}:7891", f"{self.net.host(number)}:9427")

    def write_targets(self, *names: str) -> None:
        targets = [HostTargets(n, False, self.endpoints(n).cards, self.endpoints(n).ping, ()) for n in names]
        files = {**scrape_files(targets), "prometheus.yml": prometheus_config(SCRAPE_SECONDS)}
        write_changed(self.directory, files)

    def start(self) -> None:
        self.server = start_prometheus(self.directory, self.address, self.directory / "data")
        wait_until(lambda: is_ready(self.address), "Prometheus is ready", 30.0, every=0.1)

    def read(self, timeout: float = 2.0) -> Evidence:
        async def once() -> Evidence:
            source = PrometheusSource(f"http://{self.address}:{PORT}", timeout, MAX_AGE)
            try:
                return await source.read(self.hosts)
            finally:
                await source.close()

        return asyncio.run(once())

    def wait(self, right: Callable[[Evidence], bool], what: str, timeout: float = 2.0) -> Evidence:
        def probe() -> Evidence | None:
            evidence = self.read(timeout)
            return evidence if right(evidence) else None

        return wait_until(probe, what, 30.0, every=0.1)

    def shows(self, metric: str) -> dict[str, str]:
        """What Prometheus shows of a metric when it is simply asked, by host."""
        url = f"http://{self.address}:{PORT}/api/v1/query?query={metric}"
        with urllib.request.urlopen(url, timeout=15) as answer:
            series = json.load(answer)["data"]["result"]
        return {one["metric"]["host"]: one["value"][1] for one in series}

    def statuses(self, evidence: Evidence) -> dict[str, dict[str, float]]:
        return {host: dict(sample.status) for host, sample in evidence.samples.items()}


@pytest.fixture(scope="module")
def shared_watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    net, directory = LoopbackNet.pick(), tmp_path_factory.mktemp("prometheus")
    exporters = {
        f"{kind}{number}": HttpExporter(net.host(number), port)
        for number in (1, 2)
        for kind, port in (("cards", 7891), ("ping", 9427))
    }
    for exporter in exporters.values():
        exporter.__enter__()
    watch = Watch(net, directory, exporters, None, net.host(9))  # type: ignore[arg-type]
    watch.write_targets("s1", "s2")
    watch.start()
    yield watch
    watch.server.stop()
    for exporter in exporters.values():
        exporter.close()


@pytest.fixture
def watch(shared_watch: Watch) -> Watch:
    """All exporters answer, and Prometheus has read them."""
    shared_watch.exporters["cards1"].text = card_status(A=1)
    shared_watch.exporters["cards2"].text = card_status(B=1)
    shared_watch.exporters["ping1"].text = ping_loss("s1", s2=("192.0.2.2", 0))
    shared_watch.exporters["ping2"].text = ping_loss("s2", s1=("192.0.2.1", 0))
    shared_watch.write_targets("s1", "s2")
    shared_watch.wait(
        lambda e: shared_watch.statuses(e) == {"s1": {"A": 1}, "s2": {"B": 1}} and len(e.loss) == 2,
        "both hosts are well",
    )
    return shared_watch


def test_the_configuration_is_one_that_prometheus_takes(watch: Watch) -> None:
    command = [str(promtool()), "check", "config", str(watch.directory / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_status_and_loss_come_through(watch: Watch) -> None:
    watch.exporters["cards1"].text = card_status(A=0)
    watch.exporters["ping2"].text = ping_loss("s2", s1=("192.0.2.1", 75))
    evidence = watch.wait(lambda e: watch.statuses(e)["s1"] == {"A": 0} and e.loss[1].percent == 75, "both")
    assert evidence.loss == (PathLoss("s1", "s2", "192.0.2.2", 0.0), PathLoss("s2", "s1", "192.0.2.1", 75.0))


def test_an_exporter_that_answers_errors_garbage_or_another_hosts_metrics(watch: Watch) -> None:
    watch.exporters["cards1"].text = None
    watch.exporters["ping1"].text = ping_loss("s2", s2=("192.0.2.2", 100))
    evidence = watch.wait(lambda e: bool(e.samples["s1"].error) and len(e.loss) == 1, "an error")
    assert evidence.samples["s1"].error == "its exporter does not answer Prometheus"
    assert watch.statuses(evidence) == {"s1": {}, "s2": {"B": 1.0}}
    watch.exporters["cards1"].text = card_status(A=1)
    watch.wait(lambda e: not e.samples["s1"].error, "an answer")
    watch.exporters["cards1"].text = "xdp_service_status{{{"
    watch.wait(lambda e: bool(e.samples["s1"].error), "an error")
    # Series without labels, or with the labels of `up`, must not spoil the query for the others.
    watch.exporters["cards1"].text = "xdp_service_status 0\nping_loss_percent 100\n"
    evidence = watch.wait(lambda e: not e.samples["s1"].error, "an answer")
    assert watch.statuses(evidence) == {"s1": {}, "s2": {"B": 1.0}}


def test_a_suspended_prometheus_gives_nothing_and_comes_back(watch: Watch) -> None:
    watch.server.suspend()
    try:
        # Until all its threads stand still it may answer once more, even with an error.
        silence = "gave no answer within 0.5 s"
        evidence = watch.wait(lambda e: e.problem.endswith(silence), "no answer", timeout=0.5)
        assert watch.statuses(evidence) == {"s1": {}, "s2": {}}
        assert all(sample.error == evidence.problem for sample in evidence.samples.values())
    finally:
        watch.server.resume()
    watch.wait(lambda e: watch.statuses(e) == {"s1": {"A": 1}, "s2": {"B": 1}}, "Prometheus answers again")


def test_what_a_restarted_prometheus_remembers_is_stale(watch: Watch) -> None:
    """It goes on showing series of before its restart for five minutes; they are no evidence."""
    watch.exporters["cards1"].text = card_status(A=0)
    watch.wait(lambda e: watch.statuses(e)["s1"] == {"A": 0}, "a card that does not run")
    watch.server.kill()
    assert watch.read().problem.endswith("does not answer")
    watch.write_targets("s2")
    watch.start()
    evidence = watch.wait(
        lambda e: watch.statuses(e) == {"s1": {}, "s2": {"B": 1}} and [p.source for p in e.loss] == ["s2"],
        "s2 is fresh and s1 is not",
    )
    assert watch.shows("xdp_service_status") == {"s1": "0", "s2": "1"}
    assert "no fresh scrape" in evidence.samples["s1"].error
