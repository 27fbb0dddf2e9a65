"""clustercli doctor: what would keep this host from joining, or from being a good member, and what to do."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from akv.v1 import cluster_pb2 as pb

from controlplane.base.addresses import HostPort
from controlplane.base.card_cli import CardCli, ListedCard
from controlplane.base.join_token import JoinToken, JoinTokenError, parse_join_token
from controlplane.base.request_errors import InvalidRequest
from controlplane.cluster import member_client
from controlplane.cluster.doctor_local import (
    check_answers,
    check_cards,
    check_disk,
    check_port,
    check_runner,
)
from controlplane.cluster.doctor_peers import check_before_joining, check_cluster
from controlplane.cluster.doctor_report import Finding, skipped
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.cluster.trust import Trust


class HostDoctor:
    """Checks the host that it runs on, and the way to the hosts of a cluster."""

    def __init__(
        self, settings: ClusterSettings, supervisor: MemberSupervisor, cli: CardCli, trust: Trust
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._cli = cli
        self._trust = trust

    async def check(self, via_host: str, token: str = "") -> pb.CheckHostResponse:
        """Run all checks. `via_host` is any host of the cluster to join, `token` one of that cluster's for a
        host without a certificate. Raises InvalidRequest.
        """
        via = ""
        if via_host:
            via = str(member_client.parse_via(via_host, default_port=5000, secure=self._trust.secure))
        given = self._read_token(token, via)
        settings, membership = self._settings, self._supervisor.membership
        findings = self._ports(membership is not None)
        findings += await self._monitoring()
        findings.append(await asyncio.to_thread(check_runner, settings))
        findings += await asyncio.to_thread(check_disk, settings.data_dir)
        card_findings, cards = await check_cards(settings, self._cli)
        findings += card_findings
        if membership is not None and not via:
            via = next((peer.api for peer in membership.peers), "")
        findings += await self._check_cluster(via, given, cards, is_member=membership is not None)
        return pb.CheckHostResponse(host=settings.host, checks=map(_check, findings))

    async def _check_cluster(
        self, via: str, token: JoinToken | None, cards: list[ListedCard], *, is_member: bool
    ) -> list[Finding]:
        if not via:
            text = "name a host of the cluster to check the way to it: doctor -n HOST"
            return [skipped("cluster", text)]
        if not self._trust.ready:
            return await check_before_joining(self._settings, via, token, cards)
        return await check_cluster(self._settings, self._trust, via, cards, is_member)

    def _read_token(self, text: str, via: str) -> JoinToken | None:
        """The token, where one is given and of use. Raises InvalidRequest."""
        if not text:
            return None
        if not self._trust.secure or not via:
            raise InvalidRequest(
                "a token is for doctor -n HOST on a host with AWC_SECURITY=mtls: name HOST, or leave it out"
            )
        try:
            return parse_join_token(text)
        except JoinTokenError as error:
            raise InvalidRequest(str(error)) from None

    async def _monitoring(self) -> list[Finding]:
        """Whether what the leader asks for health is there: the exporters, and Prometheus where chosen."""
        settings = self._settings
        wanted = [
            (
                "exporter",
                settings.exporter_endpoint,
                "the card exporter (or the witness exporter)",
                "start akv-card-exporter, on a witness host akv-witness-exporter; without it the cards' "
                "health stays unknown",
            )
        ]
        if settings.metrics == "prometheus":
            remedy = "start Prometheus with AWC_MONITORING_DIR/prometheus.yml: without it health is unknown"
            where = urlsplit(settings.prometheus_url).netloc
            wanted.append(("prometheus", where, "Prometheus", remedy))
        return list(await asyncio.gather(*(check_answers(*each) for each in wanted)))

    def _ports(self, is_member: bool) -> list[Finding]:
        settings = self._settings
        if is_member:
            return [skipped("etcd-ports", "this host is in a cluster: its etcd has them")]
        ports = {"etcd clients": settings.etcd_client_port, "etcd peers": settings.etcd_peer_port}
        return [
            check_port(f"port-{port}", HostPort(settings.address, port), what) for what, port in ports.items()
        ]


def _check(finding: Finding) -> pb.HostCheck:
    return pb.HostCheck(name=finding.name, result=finding.result, text=finding.text, remedy=finding.remedy)
