"""Exporters over HTTPS: to hosts of the cluster only, read by the leader itself and by a real Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.base.credentials import CredentialFiles
from controlplane.base.http_tls import HttpTls
from controlplane.base.pki import Role
from controlplane.cluster.evidence import Evidence, HostEndpoints, HostSample
from controlplane.cluster.metric_source import ExporterSource
from controlplane.cluster.monitoring import write_changed
from controlplane.cluster.prometheus_files import HostTargets, prometheus_config, scrape_files
from controlplane.cluster.prometheus_source import PrometheusSource
from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import EXPORTER_PORT, ClusterHost, card
from tests.support.pki import TestAuthority
from tests.support.procs import wait_until
from tests.support.prometheus import PORT, start_prometheus

pytestmark = pytest.mark.slow
SCRAPE_SECONDS = 0.5


@dataclass
class Exporter:
    """A card exporter that was started before its host had a certificate, and has one now."""

    host: ClusterHost
    authority: TestAuthority
    own: CredentialFiles

    @property
    def endpoint(self) -> str:
        return f"{self.host.address}:{EXPORTER_PORT}"

    def read(self, files: CredentialFiles | None) -> HostSample:
        """What a leader with these credentials reads."""
        tls = HttpTls(files, server=False) if files is not None else None
        return read(ExporterSource(5.0, tls), self.endpoint)


def read(source: ExporterSource | PrometheusSource, endpoint: str) -> HostSample:
    async def once() -> Evidence:
        try:
            return await source.read({"s1": HostEndpoints(endpoint, tls=True)})
        finally:
            await source.close()

    return asyncio.run(once()).samples["s1"]


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    directory = tmp_path_factory.mktemp("tls")
    host = ClusterHost("s1", LoopbackNet.pick().host(1), directory / "s1", secure=True)
    host.set_cards(card(0))
    host.start_exporter()
    program = host.exporter
    assert program is not None
    authority = TestAuthority(directory)
    own = authority.issue(Role.HOST, "s1")
    host.pki_dir.parent.mkdir(parents=True)
    own.key.parent.rename(host.pki_dir)
    program.wait_event("ready", 30.0, where=lambda event: event["tls"])
    yield Exporter(host, authority, CredentialFiles.in_directory(host.pki_dir))
    program.stop()


def test_a_host_reads_it(exporter: Exporter) -> None:
    assert exporter.read(exporter.own).status == {"L0P0": 1.0}


def test_who_has_no_certificate_of_the_cluster_reads_nothing(exporter: Exporter, tmp_path: Path) -> None:
    stranger = TestAuthority(tmp_path).issue(Role.HOST, "s1")
    for files in (None, stranger):
        sample = exporter.read(files)
        assert not sample.status
        assert sample.error


def test_a_gateway_can_not_stand_in_for_an_exporter(exporter: Exporter, loopback_net: LoopbackNet) -> None:
    files = exporter.authority.issue(Role.GATEWAY, "pod-1")
    impostor = ClusterHost("s9", loopback_net.host(9), files.key.parent / "s9", secure=True)
    impostor.set_cards(card(0))
    impostor.pki_dir.parent.mkdir(parents=True)
    impostor.pki_dir.symlink_to(files.key.parent)
    impostor.start_exporter()
    try:
        tls = HttpTls(exporter.own, server=False)
        sample = read(ExporterSource(5.0, tls), f"{impostor.address}:{EXPORTER_PORT}")
        assert "is no host of this cluster" in sample.error
    finally:
        impostor.stop()


def test_a_new_certificate_is_taken_and_half_a_one_is_not(exporter: Exporter) -> None:
    program = exporter.host.exporter
    assert program is not None
    renewed = exporter.authority.issue(Role.HOST, "s1")
    exporter.own.certificate.write_bytes(renewed.certificate.read_bytes()[:100])
    assert exporter.read(renewed).status == {"L0P0": 1.0}
    taken = len(program.events("certificate taken"))
    renewed.key.replace(exporter.own.key)
    renewed.certificate.replace(exporter.own.certificate)
    wait_until(lambda: len(program.events("certificate taken")) > taken, "the new one is taken", 30.0)
    assert exporter.read(exporter.own).status == {"L0P0": 1.0}


def test_prometheus_reads_it_with_the_configuration_that_is_written_for_it(
    exporter: Exporter, tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    targets = [HostTargets("s1", False, exporter.endpoint, "", (), tls=True)]
    config = prometheus_config(SCRAPE_SECONDS, exporter.own)
    write_changed(tmp_path, {**scrape_files(targets), "prometheus.yml": config})
    server = start_prometheus(tmp_path, loopback_net.host(2), tmp_path / "data")
    try:
        url = f"http://{loopback_net.host(2)}:{PORT}"
        wait_until(
            lambda: read(PrometheusSource(url, 2.0, 5.0), exporter.endpoint).status == {"L0P0": 1.0},
            "Prometheus has scraped it",
            30.0,
            every=0.2,
        )
    finally:
        server.stop()
