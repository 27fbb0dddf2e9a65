"""DataplaneService: plans in, status out (protos/akv/v1/dataplane.proto)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from akv.v1 import dataplane_pb2, dataplane_pb2_grpc, plan_pb2

from controlplane.base.logging import get_logger
from dataplane.plans import (
    StalePlanError,
    change_between,
    check_order,
    check_plan,
    native_slots,
)

if TYPE_CHECKING:
    from dataplane._native import Engine

log = get_logger("dataplane")

# What operators know the storage backends by.
BACKEND_NAMES = {"kv-nvme": "NVMeTcpBackend", "kv-memory": "MemoryBackend"}

_Context = grpc.aio.ServicerContext[object, object]


class DataplaneServicer(dataplane_pb2_grpc.DataplaneServiceServicer):
    """Serves one engine. Plans are applied one at a time, outside the event loop.

    A caller who stops waiting doesn't end what the engine does: a plan that is late is served all the same.
    So `_plan` is the one that the engine was given last, and `_settled` whether it is known to serve it.
    """

    def __init__(self, engine: Engine, backend: str, version: str) -> None:
        self._engine = engine
        self._backend = backend
        self._version = version
        self._plan: plan_pb2.Plan | None = None
        self._settled = True
        self._applying: asyncio.Task[bool] | None = None

    async def close(self) -> None:
        """Wait for the plan that is being applied; no call may come after."""
        if self._applying is not None:
            await asyncio.wait({self._applying})

    async def ApplyPlan(
        self, request: dataplane_pb2.ApplyPlanRequest, context: _Context
    ) -> dataplane_pb2.ApplyPlanResponse:
        """Serve by the plan; INVALID_ARGUMENT, FAILED_PRECONDITION or UNAVAILABLE when that can't be."""
        if not request.HasField("plan"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "plan: is missing")
        while self._applying is not None:
            await asyncio.wait({self._applying})
        self._applying = asyncio.create_task(
            self._apply(request.plan, allow_cluster_change=request.allow_cluster_change)
        )
        self._applying.add_done_callback(self._applied)
        try:
            changed = await asyncio.shield(self._applying)
        except StalePlanError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RuntimeError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return dataplane_pb2.ApplyPlanResponse(changed=changed)

    async def GetPlan(
        self, request: dataplane_pb2.GetPlanRequest, context: _Context
    ) -> dataplane_pb2.GetPlanResponse:
        """The plan that is served, if any, and whether that is sure."""
        return dataplane_pb2.GetPlanResponse(plan=self._plan, unsettled=not self._settled)

    async def GetStatus(
        self, request: dataplane_pb2.GetStatusRequest, context: _Context
    ) -> dataplane_pb2.GetStatusResponse:
        """Every card of the plan as the engine sees it, all counters, and which plan is served."""
        cards = await asyncio.to_thread(self._engine.status)
        return dataplane_pb2.GetStatusResponse(
            cards=[
                dataplane_pb2.CardStatus(
                    serial=card.serial,
                    slot=card.slot,
                    state=card.state,
                    active=card.active,
                    last_error=card.last_error,
                    reconnects=card.reconnects,
                    timeouts=card.timeouts,
                    gets=card.gets,
                    hits=card.hits,
                    puts=card.puts,
                    inflight=card.inflight,
                    path=card.path,
                    trouble=card.trouble,
                )
                for card in cards
            ],
            counters=self._engine.counters(),
            backend=self._backend,
            version=self._version,
            plan_sequence=self._plan.sequence if self._plan is not None and self._settled else 0,
        )

    def _applied(self, task: asyncio.Task[bool]) -> None:
        self._applying = None
        # Whoever asked may have gone; a failure is in the log.
        if not task.cancelled():
            task.exception()

    async def _apply(self, plan: plan_pb2.Plan, *, allow_cluster_change: bool) -> bool:
        """Raises InvalidPlanError or StalePlanError (ValueErrors), or what the engine raises."""
        before, settled = self._plan, self._settled
        try:
            check_plan(plan)
            if not check_order(plan, before, allow_cluster_change=allow_cluster_change) and settled:
                return False
            slots = native_slots(plan)
            if before is None:
                name = BACKEND_NAMES[self._backend]
                log.info(f"Initializing {name} with {len(plan.slots)} storage devices")
            self._plan, self._settled = plan, False
            await asyncio.to_thread(
                self._engine.apply_plan,
                cluster_uuid=plan.cluster_uuid,
                sequence=plan.sequence,
                num_dbs=plan.num_dbs,
                fingerprint=plan.fingerprint,
                slots=slots,
            )
        except ValueError as error:
            self._plan, self._settled = before, settled
            log.warning("Plan refused", error=str(error), sequence=plan.sequence)
            raise
        except Exception as error:
            # Whatever it is: the engine may serve the plan in part, and who asked may have gone.
            log.warning("Plan not served by all workers", error=str(error), sequence=plan.sequence)
            raise
        self._settled = True
        self._report(before, plan)
        return True

    def _report(self, before: plan_pb2.Plan | None, plan: plan_pb2.Plan) -> None:
        change = change_between(before, plan)
        log.info(
            "Plan served",
            fingerprint=plan.fingerprint,
            sequence=plan.sequence,
            cluster_uuid=plan.cluster_uuid,
            cards=len(plan.slots),
            routable=sum(entry.routable for entry in plan.slots),
            added=change.added,
            removed=change.removed,
            now_routable=change.now_routable,
            now_unroutable=change.now_unroutable,
        )
