"""Plans of a gateway for tests of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controlplane.gateway.pusher import PlanPusher
from controlplane.model.plan import GatewayPlan, PlannedCard

UUID = "8a7c1c1e-5a38-4cbd-8a70-000000000001"


def a_plan(*serials: str, cluster: str = UUID) -> GatewayPlan:
    """Cards of these serials in the slots from 0 on, all routable."""
    cards = (PlannedCard(slot, serial, f"nqn.{serial}", "", (), True) for slot, serial in enumerate(serials))
    return GatewayPlan(cluster, 128, tuple(cards))


@asynccontextmanager
async def running(pusher: PlanPusher) -> AsyncIterator[None]:
    """The pusher at work, until the block ends."""
    task = asyncio.create_task(pusher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
