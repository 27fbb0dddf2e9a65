"""OperatorService on :5000: thin handlers over cards, slot plan, events and the checks of a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from akv.v1 import cluster_pb2 as pb
from akv.v1 import cluster_pb2_grpc

from controlplane.base.logging import get_logger
from controlplane.cluster.cards_admin import CardsAdmin
from controlplane.cluster.doctor import HostDoctor
from controlplane.cluster.doctor_peers import check_peer
from controlplane.cluster.event_queries import WAIT_LIMIT_SECONDS, EventQueries
from controlplane.cluster.rpc import Handlers

SERVICE = "akv.v1.OperatorService"
READ_SECONDS = 5.0
CHECK_SECONDS = 60.0

log = get_logger("operator-api")


@dataclass(frozen=True, slots=True)
class OperatorParts:
    """Who does the work."""

    cards: CardsAdmin
    events: EventQueries
    doctor: HostDoctor


class OperatorServicer(cluster_pb2_grpc.OperatorServiceServicer):
    """gRPC handlers of one host."""

    def __init__(self, host: str, parts: OperatorParts) -> None:
        self._host = host
        self._run = Handlers(host).run
        self._parts = parts

    async def ListCards(self, request: Any, context: Any) -> pb.ListCardsResponse:
        """Every card with its slot and places."""
        return await self._run(context, READ_SECONDS, lambda _: self._parts.cards.list_cards())

    async def ForgetCard(self, request: Any, context: Any) -> pb.ForgetCardResponse:
        """Free a card's slot."""
        log.info("forget_card asked for", serial=request.xdp_serial, peer=context.peer())
        return await self._run(
            context,
            READ_SECONDS,
            lambda _: self._parts.cards.forget_card(request.xdp_serial, request.even_if_listed),
        )

    async def ShowPlan(self, request: Any, context: Any) -> pb.ShowPlanResponse:
        """The slot plan."""
        return await self._run(context, READ_SECONDS, lambda _: self._parts.cards.plan(request.num_dbs))

    async def ListEvents(self, request: Any, context: Any) -> pb.ListEventsResponse:
        """Events, with a wait for new ones when asked to."""
        return await self._run(
            context, WAIT_LIMIT_SECONDS + READ_SECONDS, lambda _: self._parts.events.list_events(request)
        )

    async def CheckHost(self, request: Any, context: Any) -> pb.CheckHostResponse:
        """The checks of the asked host."""
        return await self._run(
            context, CHECK_SECONDS, lambda _: self._parts.doctor.check(request.via_host, request.token)
        )

    async def CheckPeer(self, request: Any, context: Any) -> pb.CheckPeerResponse:
        """How another host looks from this one."""
        return await self._run(context, READ_SECONDS, lambda _: check_peer(self._host, request))


def operator_service(host: str, parts: OperatorParts) -> Callable[[grpc.aio.Server], str]:
    """Return what adds the service to a server."""

    def register(server: grpc.aio.Server) -> str:
        cluster_pb2_grpc.add_OperatorServiceServicer_to_server(OperatorServicer(host, parts), server)
        return SERVICE

    return register
