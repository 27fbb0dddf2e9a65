"""gRPC servers around the control process: a host that names members, a dataplane that records plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import NoReturn

import grpc
from akv.v1 import cluster_pb2, cluster_pb2_grpc, dataplane_pb2, dataplane_pb2_grpc, plan_pb2

from tests.support.procs import PATIENCE, wait_until


class ClusterHost(cluster_pb2_grpc.ClusterServiceServicer):
    """Answers GetMembers with what the test sets."""

    def __init__(self, address: str, uuid: str, endpoints: Sequence[str]) -> None:
        self.address = address
        self.uuid = uuid
        self.endpoints = list(endpoints)
        self.asked = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"{address}:0")
        self._server.start()

    @property
    def entry(self) -> str:
        """As in cluster_hostname."""
        return f"{self.address}:{self.port}"

    def GetMembers(
        self, request: cluster_pb2.GetMembersRequest, context: grpc.ServicerContext
    ) -> cluster_pb2.GetMembersResponse:
        self.asked += 1
        return self.answer()

    def refused(self, request: object, context: grpc.ServicerContext) -> NoReturn:
        """Every call but GetMembers: a gateway makes no other."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "this host names its members only")

    AddNode = CreateCluster = GetCluster = JoinCluster = RemoveNode = refused

    def answer(self) -> cluster_pb2.GetMembersResponse:
        """The members that this host names."""
        members = [
            cluster_pb2.Member(host="h", client_urls=[f"http://{endpoint}"], started=True)
            for endpoint in self.endpoints
        ]
        return cluster_pb2.GetMembersResponse(cluster_uuid=self.uuid, cluster_name="test", members=members)

    def stop(self) -> None:
        self._server.stop(None).wait(5)


class RecordingDataplane(dataplane_pb2_grpc.DataplaneServiceServicer):
    """Serves DataplaneService by its rules, and keeps every plan that it took.

    The subject of these tests is the control process; a card counts as active as soon as its slot routes.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.applied: list[plan_pb2.Plan] = []
        self.plans_read = 0
        self.refuse: str | None = None
        self.refused = 0
        self.refused_changes = 0
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None
        self.start()

    def start(self) -> None:
        """Start, as a process would: with no plan."""
        self.plan: plan_pb2.Plan | None = None
        self.unsettled = False
        self.answers = threading.Event()  # cleared, GetPlan is counted and its answer waits
        self.answers.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait(5)
            self._server = None

    def wait_plan(
        self, wanted: Callable[[plan_pb2.Plan], bool], what: str, seconds: float = PATIENCE
    ) -> plan_pb2.Plan:
        """The plan that is served, once `wanted` holds for it."""
        return wait_until(
            lambda: self.plan if self.plan is not None and wanted(self.plan) else None, what, seconds
        )

    def ApplyPlan(
        self, request: dataplane_pb2.ApplyPlanRequest, context: grpc.ServicerContext
    ) -> dataplane_pb2.ApplyPlanResponse:
        with self._lock:
            if self.refuse is not None:
                self.refused += 1
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse)
            served = self.plan
            if served is not None and served.cluster_uuid != request.plan.cluster_uuid:
                if not request.allow_cluster_change:
                    self.refused_changes += 1
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a plan of another cluster")
            elif served is not None and served.sequence >= request.plan.sequence:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "an older plan")
            self.plan = request.plan
            self.unsettled = False
            self.applied.append(request.plan)
            return dataplane_pb2.ApplyPlanResponse(changed=True)

    def GetPlan(
        self, request: dataplane_pb2.GetPlanRequest, context: grpc.ServicerContext
    ) -> dataplane_pb2.GetPlanResponse:
        self.plans_read += 1
        if not self.answers.wait(PATIENCE):
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the test holds this answer")
        return dataplane_pb2.GetPlanResponse(plan=self.plan, unsettled=self.unsettled)

    def GetStatus(
        self, request: dataplane_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> dataplane_pb2.GetStatusResponse:
        slots = self.plan.slots if self.plan is not None else []
        cards = [
            dataplane_pb2.CardStatus(
                serial=slot.card.serial,
                slot=slot.slot,
                state="live" if slot.routable else "stopped",
                active=slot.routable,
            )
            for slot in slots
        ]
        return dataplane_pb2.GetStatusResponse(
            cards=cards,
            counters={"gets": 7},
            backend="recording",
            plan_sequence=self.plan.sequence if self.plan is not None else 0,
        )


def serials(plan: plan_pb2.Plan, *, routable: bool = True) -> set[str]:
    """Serials of the slots that route (or of those that don't)."""
    return {slot.card.serial for slot in plan.slots if slot.routable is routable}
