"""Keeps the dataplane on the newest plan, whichever of the two processes was restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from akv.v1 import dataplane_pb2

from controlplane.base.backoff import Backoff
from controlplane.base.logging import get_logger
from controlplane.gateway.dataplane import DataplaneClient, DataplaneError, Served
from controlplane.model.plan import FIXED_LIST, GatewayPlan

log = get_logger("plan-push")


class PlanPusher:
    """Pushes the wanted plan until the dataplane has it, and again to a dataplane that was started anew.

    What the dataplane serves is always read before it is compared, and a plan counts as served only after the
    dataplane has taken it. Sequence numbers go on from the dataplane's own. The status that is asked for all
    the time says whether that is still so (`heard`): a suspended process keeps its connection, but serves
    nothing. `changed` is called when `in_sync` has changed for longer than such a look takes.
    """

    def __init__(
        self,
        dataplane: DataplaneClient,
        backoff: Backoff,
        accepted_uuid: str | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._dataplane = dataplane
        self._backoff = backoff
        self._accepted_uuid = accepted_uuid
        self._tell_changed = changed
        self._wanted: GatewayPlan | None = None
        self._served: Served | None = None
        self._sequence = 0
        self._changed = asyncio.Event()
        self._doubt = False
        self._silent = False
        self._told_in_sync = False
        self._last_error: str | None = None

    @property
    def in_sync(self) -> bool:
        """The dataplane is connected and serves the wanted plan."""
        return self._served is not None and not self._silent and self._serves_wanted(self._served)

    def want(self, plan: GatewayPlan) -> None:
        """Make `plan` the one to be served; returns at once."""
        self._wanted = plan
        self._changed.set()

    def heard(self, answer: dataplane_pb2.GetStatusResponse | DataplaneError) -> None:
        """Take an answer to GetStatus, or why there was none.

        One that does not tell of the plan served so far is no fault by itself (it may be from before the last
        push), but makes the pusher read the plan again.
        """
        if self._served is None:
            return
        self._silent = isinstance(answer, DataplaneError)
        if isinstance(answer, DataplaneError) or answer.plan_sequence != self._served.sequence:
            self._doubt = True
            self._changed.set()

    async def run(self) -> None:
        """Push for ever; ends by cancellation."""
        while True:
            try:
                await self._follow()
            except DataplaneError as error:
                self._report(error)
                await asyncio.sleep(self._backoff.next())

    async def _follow(self) -> None:
        """One connection: read what is served, then push each plan that differs, until it is lost."""
        self._served = await self._read()
        lost = asyncio.create_task(self._dataplane.disconnected())
        lost.add_done_callback(lambda _: self._changed.set())
        try:
            while not lost.done():
                self._changed.clear()
                if self._doubt:
                    self._served = await self._read()
                if self._wanted is not None and not self._serves_wanted(self._served):
                    await self._push(self._wanted, self._served)
                self._recovered()
                self._tell()
                await self._changed.wait()
        finally:
            self._served = None
            self._tell()
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)
        log.warning("Dataplane connection lost")

    def _serves_wanted(self, served: Served) -> bool:
        return served.settled and served.plan == self._wanted

    async def _read(self) -> Served:
        self._doubt = False  # one that comes up while the answer is under way is asked about anew
        served = await self._dataplane.get_plan()
        self._silent = False
        self._sequence = max(self._sequence, served.sequence)
        return served

    def _tell(self) -> None:
        # Whoever is told asks for a status: one that fails or tells of no plan must not lead to the next.
        if self.in_sync != self._told_in_sync:
            self._told_in_sync = self.in_sync
            self._tell_changed()

    async def _push(self, plan: GatewayPlan, served: Served) -> None:
        self._sequence += 1
        await self._dataplane.apply_plan(plan, self._sequence, self._may_change_cluster(plan, served))
        self._served = Served(plan, self._sequence)
        log.info(
            "Plan applied",
            fingerprint=plan.fingerprint,
            sequence=self._sequence,
            cards=len(plan.cards),
            routable=len(plan.routable),
        )

    def _may_change_cluster(self, plan: GatewayPlan, served: Served) -> bool:
        """Another cluster needs an explicit setting; a fixed list in gateway.yaml, now or before, is one."""
        if plan.cluster_uuid == self._accepted_uuid:
            return True
        return FIXED_LIST in (plan.cluster_uuid, served.plan.cluster_uuid if served.plan else FIXED_LIST)

    def _report(self, error: DataplaneError) -> None:
        """Each failure once, however often it comes back."""
        if str(error) == self._last_error:
            return
        self._last_error = str(error)
        fingerprint = self._wanted.fingerprint if self._wanted else None
        if error.refused:
            log.error("Dataplane refuses", error=str(error), fingerprint=fingerprint)
        else:
            log.warning("Dataplane does not answer", error=str(error), fingerprint=fingerprint)

    def _recovered(self) -> None:
        self._backoff.reset()
        if self._last_error is not None:
            self._last_error = None
            log.info("Dataplane answers again")
