"""The cluster service of one host: all its parts, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

import grpc

from controlplane.base.addresses import HostPort
from controlplane.base.card_cli import CardCli
from controlplane.base.card_identify import CardIdentify
from controlplane.base.credentials import CredentialFiles
from controlplane.base.http_tls import HttpTls
from controlplane.base.logging import get_logger
from controlplane.cluster.administration import Administration
from controlplane.cluster.api import ClusterServer
from controlplane.cluster.authorization import Gatekeeper
from controlplane.cluster.card_checker import CardChecker
from controlplane.cluster.cards_admin import CardsAdmin
from controlplane.cluster.companion import Companion
from controlplane.cluster.cycles import run_cycles
from controlplane.cluster.discovery import Discovery
from controlplane.cluster.doctor import HostDoctor
from controlplane.cluster.doctor_peers import look_at_newcomer
from controlplane.cluster.enrollment import EnrollServer
from controlplane.cluster.etcd_binary import find_etcd
from controlplane.cluster.etcd_child import ChildEtcd
from controlplane.cluster.etcd_runner import EtcdRunner
from controlplane.cluster.etcd_space import SpaceKeeper
from controlplane.cluster.event_log import EventLog
from controlplane.cluster.event_queries import EventQueries
from controlplane.cluster.health_round import HealthRound
from controlplane.cluster.hosts_admin import HostsAdmin
from controlplane.cluster.issuer import Issuer
from controlplane.cluster.keeper import Keeper
from controlplane.cluster.leader import Leader
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.listeners import Listeners
from controlplane.cluster.membership_file import MembershipFile
from controlplane.cluster.metric_source import ExporterSource, MetricSource
from controlplane.cluster.monitoring import Monitoring
from controlplane.cluster.operator_api import OperatorParts, operator_service
from controlplane.cluster.packet_loss import LossLimits
from controlplane.cluster.pki_api import PkiServicer
from controlplane.cluster.prometheus_source import PrometheusSource
from controlplane.cluster.queries import Queries
from controlplane.cluster.revocations import Revocations
from controlplane.cluster.settings import DOCKER, MTLS, ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.cluster.trust import Trust
from controlplane.store.election import Standing

KEEPER_SECONDS = 1.0
METRICS_SECONDS = 2.0
EVENTS_SECONDS = 5.0
# A metric that was not scraped this many times in a row is stale.
SCRAPES_KEPT = 3

log = get_logger("service")


class HostOperations:
    """The API's operations, each given to the part that does it."""

    def __init__(self, queries: Queries, administration: Administration, hosts: HostsAdmin) -> None:
        self.get_members = queries.get_members
        self.get_cluster = queries.get_cluster
        self.create_cluster = administration.create_cluster
        self.add_node = administration.add_node
        self.join_cluster = hosts.join_cluster
        self.remove_node = hosts.remove_node


class ClusterService:
    """Everything one host runs. Raises MembershipFileError when what the host knew can't be read."""

    def __init__(
        self,
        settings: ClusterSettings,
        trust: Trust,
        runner: EtcdRunner | None = None,
        companions: Sequence[Companion] = (),
    ) -> None:
        self._settings = settings
        self._companions = companions
        self._trust = trust
        self._link = EtcdLink(settings.client_url, self._trust.etcd_credentials())
        self._metrics = _metric_source(settings)
        chosen = runner or _runner(settings)
        self._supervisor = MemberSupervisor(
            settings, chosen, MembershipFile(settings.state_dir), self._link.probe_own, self._trust
        )
        self._issuer = Issuer(settings, self._trust, self._link)
        self._keeper = Keeper(settings, self._supervisor, self._link, self._issuer.secure_cluster)
        self._events = EventLog(settings.host, self._link)
        self._space = SpaceKeeper(settings, self._link, self._events)
        limits = LossLimits(settings.ping_loss_percent, settings.ping_loss_percent / 2)
        health = HealthRound(self._metrics, limits, self._events)
        self._leader = Leader(settings, self._supervisor, self._link, health, self._events, self._trust)
        self._monitoring = Monitoring(settings, self._supervisor, self._link)
        cli = CardCli(settings.card_cli, min(5.0, max(1.0, settings.cycle_seconds)))
        self._checker = CardChecker(CardIdentify(settings.card_check))
        self._discovery = Discovery(settings, self._supervisor, self._link, cli, self._checker, self._events)
        self._administration = Administration(settings, self._supervisor, self._trust, self._issuer)
        queries = Queries(self._supervisor, self._link)
        self._operations = HostOperations(
            queries,
            self._administration,
            HostsAdmin(self._supervisor, self._link, self._events, secure=self._trust.secure),
        )
        operator = OperatorParts(
            CardsAdmin(self._supervisor, self._link, self._events),
            EventQueries(self._supervisor, self._link),
            HostDoctor(settings, self._supervisor, cli, self._trust),
        )
        self._others = (
            *(register for companion in companions for register in companion.registrations),
            operator_service(settings.host, operator),
            PkiServicer(settings.host, self._issuer).register,
        )
        self._revocations = Revocations(self._link)
        self._gatekeeper = Gatekeeper(settings.host, self._revocations, secure=self._trust.secure)
        endpoint = HostPort(settings.address, settings.enroll_port)
        look = partial(look_at_newcomer, self._trust, queries.get_cluster)
        enrollment = EnrollServer(endpoint, self._trust, self._issuer, look)
        self._listeners = Listeners(settings, self._trust, self._make_server, enrollment)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set.

        Raises OSError when the API's address is taken, CredentialsError for certificates that can't be used.
        """
        async with self._parts():
            tasks = self._start_tasks()
            stopped = asyncio.create_task(stop.wait(), name="stop")
            try:
                await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                log.info("stopping")
            finally:
                await self._end(tasks, stopped)

    def _make_server(self, endpoint: str, credentials: grpc.ServerCredentials | None) -> ClusterServer:
        host = self._settings.host
        return ClusterServer(endpoint, host, self._operations, self._gatekeeper, self._others, credentials)

    @contextlib.asynccontextmanager
    async def _parts(self) -> AsyncIterator[None]:
        await self._listeners.start()
        settings = self._settings
        log.info("ready", host=settings.host, api=settings.api_endpoint, security=settings.security)
        try:
            yield
        finally:
            await self._listeners.stop()
            await self._checker.close()
            await self._link.close()
            await self._metrics.close()

    def _start_tasks(self) -> list[asyncio.Task[None]]:
        cycle = self._settings.cycle_seconds
        cycles = {
            "keeper": (self._keeper.cycle, lambda: min(cycle, KEEPER_SECONDS)),
            "space": (self._space.cycle, lambda: cycle),
            "leader": (self._leader.cycle, lambda: self._leader.interval),
            "discovery": (self._discovery.cycle, lambda: cycle),
            "monitoring": (self._monitoring.cycle, lambda: cycle),
        }
        tasks = [
            asyncio.create_task(self._supervisor.run(), name="supervisor"),
            asyncio.create_task(
                run_cycles("events", self._events.cycle, lambda: EVENTS_SECONDS, self._events.wake),
                name="events",
            ),
        ]
        for name, (work, interval) in cycles.items():
            wake = asyncio.Event()
            self._supervisor.listeners.append(wake)
            tasks.append(asyncio.create_task(run_cycles(name, work, interval, wake), name=name))
        for companion in self._companions:
            work_beside = companion.run(self._standing)
            tasks.append(asyncio.create_task(work_beside, name="companion"))
        if self._trust.secure:
            looking = run_cycles("revocations", self._revocations.cycle, lambda: cycle, asyncio.Event())
            tasks.append(asyncio.create_task(looking, name="revocations"))
        listening = run_cycles("listeners", self._listeners.cycle, lambda: cycle, self._trust.changed)
        tasks.append(asyncio.create_task(listening, name="listeners"))
        return tasks

    def _standing(self) -> Standing:
        return replace(self._leader.standing, revoked=self._revocations.names)

    async def _end(self, tasks: list[asyncio.Task[None]], stopped: asyncio.Task[bool]) -> None:
        """Stop the work, give back the leadership while etcd still runs, then end the member."""
        supervisor, *cycles = tasks
        await self._administration.close()
        stopped.cancel()
        await _cancel(cycles)
        await self._leader.resign()
        await _cancel([supervisor])
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


def _metric_source(settings: ClusterSettings) -> MetricSource:
    if settings.metrics == "exporters":
        files = CredentialFiles.in_directory(settings.pki_dir)
        tls = HttpTls(files, server=False) if settings.security == MTLS else None
        return ExporterSource(METRICS_SECONDS, tls)
    max_age = settings.scrape_seconds * SCRAPES_KEPT
    return PrometheusSource(settings.prometheus_url, METRICS_SECONDS, max_age)


def _runner(settings: ClusterSettings) -> EtcdRunner:
    if settings.etcd_runner == DOCKER:
        from controlplane.cluster.etcd_docker import DockerEtcd  # noqa: PLC0415 - a large SDK

        owner = f"{settings.host} {settings.data_dir}"
        return DockerEtcd(settings.docker_socket, settings.etcd_image, settings.etcd_container, owner)
    return ChildEtcd(lambda: find_etcd(settings.etcd_binary).path)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
