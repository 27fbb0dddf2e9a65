"""Ends etcd's NOSPACE alarm, which no leader of ours can: with it, no lease is granted and no write is taken.

The service beside etcd's raft leader does it, so that one host acts without an election of ours: it compacts
the history, defragments one member after the other (its own, the raft leader's, last) and switches the alarm
off. When the records themselves fill the quota, it says so and leaves the alarm on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from controlplane.base.backoff import Backoff, Clock
from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.event_log import EventSink
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.observe import status_of
from controlplane.cluster.settings import ClusterSettings
from controlplane.store.client import EtcdClient
from controlplane.store.errors import Refusal, RequestRefused, StoreError
from controlplane.store.membership import (
    Alarm,
    Member,
    compact,
    defragment,
    disarm,
    list_alarms,
    list_members,
)

NOSPACE = "NOSPACE"
# With more than this share of the quota in use, the alarm would be back with the next writes.
FULL_SHARE = 0.9
COMPACT_SECONDS = 10.0
BACK_SECONDS = 10.0
BACK_POLL_SECONDS = 0.1
# A member stands still while it is defragmented: what did not help is not repeated in every cycle.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 120.0

log = get_logger("etcd-space")


class SpaceKeeper:
    """One host's watch over etcd's alarms. `sleep` is asyncio's, or a test's, as is `clock`."""

    def __init__(
        self,
        settings: ClusterSettings,
        link: EtcdLink,
        events: EventSink,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._link = link
        self._events = events
        self._sleep = sleep
        self._clock = clock
        self._pause = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._again_at: float | None = None
        self._problem = ""
        self._said = OnChange()

    async def cycle(self) -> None:
        """Look once, act if this host's member leads raft; failures are logged once and tried again."""
        try:
            self._problem = await self._cycle()
        except (StoreError, RequestError, TimeoutError) as error:
            self._problem = f"{type(error).__name__}: {error}"
        if self._said.changed(self._problem) and self._problem:
            log.warning("etcd space not freed", reason=self._problem)
            self._events.note("alarm", self._settings.host, self._problem)

    async def _cycle(self) -> str:
        """What keeps an alarm from being ended; empty when there is none, or it was ended."""
        if not await self._link.leads_raft():
            return ""
        client = self._link.client
        alarms = await list_alarms(client)
        others = sorted({alarm.kind for alarm in alarms if alarm.kind != NOSPACE})
        full = [alarm for alarm in alarms if alarm.kind == NOSPACE]
        if full:
            return await self._free_when_due(client, full)
        self._rest()
        if others:
            return (
                f"etcd has the alarm {', '.join(others)}: a member's data differ from the others'. Stop that "
                "host's service, remove its data directory and start it: its member is replaced"
            )
        return ""

    async def _free_when_due(self, client: EtcdClient, alarms: list[Alarm]) -> str:
        """Free space at once, and again with growing pauses while that does not end the alarm."""
        now = self._clock()
        if self._again_at is not None and now < self._again_at:
            return self._problem
        self._again_at = now + self._pause.next()
        problem = await self._free(client, alarms)
        if not problem:
            self._rest()
        return problem

    def _rest(self) -> None:
        """Nothing is to be freed: the next alarm is seen to at once."""
        self._again_at = None
        self._pause.reset()

    async def _free(self, client: EtcdClient, alarms: list[Alarm]) -> str:
        log.warning("etcd is out of space", quota=self._settings.etcd_quota_bytes, members=len(alarms))
        revision = (await client.range(b"/")).header.revision
        try:
            await compact(client, revision, seconds=COMPACT_SECONDS)
        except RequestRefused as error:
            if error.refusal is not Refusal.COMPACTED:
                raise
        log.info("etcd history compacted", revision=revision)
        used = 0
        for member in await self._in_order(client):
            used = max(used, await self._defragment(client, member))
        if used > self._settings.etcd_quota_bytes * FULL_SHARE:
            return (
                f"its records take {used} of {self._settings.etcd_quota_bytes} bytes: remove keys that are "
                "not this cluster's, or raise AWC_ETCD_QUOTA_BYTES on every host"
            )
        for alarm in alarms:
            await disarm(client, alarm)
            log.info("etcd alarm disarmed", alarm=alarm.kind, member=f"{alarm.member_id:x}", used=used)
        quota = self._settings.etcd_quota_bytes
        text = f"etcd was out of space and takes writes again, with {used} of {quota} bytes used"
        self._events.note("alarm", self._settings.host, text)
        return ""

    async def _in_order(self, client: EtcdClient) -> list[Member]:
        """The members that answer; the raft leader, whose pause stops everyone's writes, last."""
        found: list[tuple[bool, Member]] = []
        members = await list_members(client)
        self._link.note_members(members)  # each of them is asked by itself
        for member in members:
            status = await status_of(client, member)
            if status is None:
                log.warning("etcd member not defragmented", member=member.name, reason="it does not answer")
                continue
            found.append((status.leader_id == member.id, member))
        return [member for _, member in sorted(found, key=lambda pair: (pair[0], pair[1].name))]

    async def _defragment(self, client: EtcdClient, member: Member) -> int:
        """Defragment one member and wait until it serves again; bytes that its file takes then."""
        await defragment(client, member.client_urls[0])
        async with asyncio.timeout(BACK_SECONDS):  # TimeoutError: no further member is stopped meanwhile
            while (status := await status_of(client, member)) is None:
                await self._sleep(BACK_POLL_SECONDS)
        log.info("etcd member defragmented", member=member.name, bytes=status.db_size)
        return status.db_size
