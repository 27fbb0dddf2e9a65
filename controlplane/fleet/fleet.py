"""The fleet on one host: opens a term when the host begins to lead, and ends it with the leadership."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import grpc
from akv.v1 import agent_pb2_grpc, fleet_pb2_grpc

from controlplane.base.backoff import Clock
from controlplane.base.logging import get_logger
from controlplane.fleet.api import FleetServicer
from controlplane.fleet.connections import Ending
from controlplane.fleet.forwarding import ChannelFactory, Forwarder, insecure_channel
from controlplane.fleet.liveness import Limits
from controlplane.fleet.stream import AgentServicer, standby
from controlplane.fleet.term import Term
from controlplane.store.election import LeadershipLost, Standing
from controlplane.store.errors import StoreError
from controlplane.store.fleet import FleetLedger

LOOK_SECONDS = 0.2
AGENT_SERVICE = "akv.v1.AgentService"
FLEET_SERVICE = "akv.v1.FleetService"

_REVOKED = Ending(grpc.StatusCode.PERMISSION_DENIED, "the certificates of this node were revoked")

log = get_logger("fleet")


class Fleet:
    """Both services of one host. `standing` is asked often for what the host knows of the election.

    With `require_identity` off, callers without a certificate are believed: the insecure mode.
    """

    def __init__(
        self,
        host: str,
        *,
        require_identity: bool,
        channel: ChannelFactory = insecure_channel,
        limits: Limits | None = None,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._look_seconds = look_seconds
        self._limits = limits or Limits()
        self._clock = clock
        self._wall = wall
        self._standing = Standing()
        self._term: Term | None = None
        self._forwarder = Forwarder(host, channel)
        self._agents = AgentServicer(
            host, self.term, lambda: self._standing.leader_api, require_identity=require_identity
        )
        self._api = FleetServicer(
            host,
            self.term,
            lambda: self._standing.leader_api,
            self._forwarder,
            require_identity=require_identity,
        )

    def term(self) -> Term | None:
        """The present term; None while this host does not lead."""
        return self._term if self._standing.leads else None

    @property
    def registrations(self) -> Sequence[Callable[[grpc.aio.Server], str]]:
        """What adds the services to a server; each gives the name of its own."""
        return [self.register_agents, self.register_api]

    def register_agents(self, server: grpc.aio.Server) -> str:
        """Add AgentService to a server; its name."""
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self._agents, server)
        return AGENT_SERVICE

    def register_api(self, server: grpc.aio.Server) -> str:
        """Add FleetService to a server; its name."""
        fleet_pb2_grpc.add_FleetServiceServicer_to_server(self._api, server)
        return FLEET_SERVICE

    async def run(self, standing: Callable[[], Standing]) -> None:
        """Follow the election until cancelled."""
        try:
            while True:
                self._standing = standing()
                if self._standing.leads:
                    await self._lead(standing)
                await asyncio.sleep(self._look_seconds)
        finally:
            await self._forwarder.close()

    async def _lead(self, standing: Callable[[], Standing]) -> None:
        """Serve one term until the leadership is lost."""
        won = self._standing
        if won.client is None or won.leadership is None:
            return
        ledger = FleetLedger(won.client, won.leadership)
        term = Term(ledger, self._limits, clock=self._clock, wall=self._wall)
        try:
            await term.open()
        except StoreError as error:
            log.warning("fleet not opened yet", reason=str(error))
            return
        found = ledger.records
        log.info("fleet opened", term=ledger.term, nodes=len(found.nodes), models=len(found.models))
        self._term = term
        work = asyncio.create_task(term.reconciler.run(), name="fleet-reconciler")
        scans = asyncio.create_task(term.scans.run(), name="fleet-scans")
        try:
            while self._standing.leads and self._standing.leadership is won.leadership and not work.done():
                await asyncio.wait({work}, timeout=self._look_seconds)
                self._standing = standing()
                term.connections.end_those(self._standing.revoked, _REVOKED)
        finally:
            self._term = None
            await _end(scans)
            await _end(work)
            # Whoever leads now is told with the next look; the agents ask for it again anyway.
            term.close(standby("" if self._standing.leads else self._standing.leader_api))
            log.info("fleet closed", term=ledger.term)


async def _end(work: asyncio.Task[None]) -> None:
    """Stop the loop; that its leadership was lost is no failure."""
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError, LeadershipLost):
        await work
