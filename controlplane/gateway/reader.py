"""Reads the cluster for the view: finds members, reads a snapshot, goes on to the next host if it must."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from controlplane.gateway.members import Members, MembersError, MemberSource
from controlplane.gateway.session import EtcdSession
from controlplane.model.view import Decision, GatewayView
from controlplane.store.errors import StoreError

REFRESH_SECONDS = 10.0


class ClusterReader:
    """One read at a time; each call of it has a deadline, and none raises.

    The members come from the first host of our cluster that answers, and are asked for again from time to
    time and soon after a failure. Where an etcd answers that is not our cluster's, the next member and then
    the next host is asked in the same read.
    """

    def __init__(self, source: MemberSource, view: GatewayView, seconds: float, wake: asyncio.Event) -> None:
        self._source = source
        self._view = view
        self._seconds = seconds
        self._wake = wake
        self._session: EtcdSession | None = None
        self._members: Members | None = None
        self._refresh = asyncio.Event()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(self, now: float, is_poll: bool) -> Decision:
        """One read that began at `now`; the view's decision about what came of it."""
        decision = Decision(stale="no host was asked")
        for _ in range(len(self._source)):
            before = decision
            try:
                opened = await self._open(now)
                decision = await self._read_members(now, is_poll)
            except (StoreError, MembersError) as error:
                self._refresh.set()
                return _joined(before, self._view.failed(str(error), now))
            decision = _joined(_joined(before, opened), decision)
            if decision.stale is None:
                break
            await self._leave_host()
        return decision

    async def keep_members(self, pause: float) -> None:
        """Ask for the members again every REFRESH_SECONDS, sooner (after `pause`) when a read failed."""
        while True:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._refresh.wait()
            except TimeoutError:
                pass
            self._refresh.clear()
            await self._renew_members()

    async def _renew_members(self) -> None:
        session = self._session
        if session is None:
            return
        try:
            found = await self._source.find(self._view.refuses_uuid)
        except MembersError:
            return  # the source has told why; the members that are known stay in use
        if session is self._session:
            session.use_endpoints(found.members.endpoints)

    async def _open(self, now: float) -> Decision:
        """Find the members where none are known; hosts that are not our cluster's are told as stale."""
        if self._session is not None:
            return Decision()
        found = await self._source.find(self._view.refuses_uuid)
        self._members = found.members
        self._session = EtcdSession(found.members.endpoints, self._seconds, self._wake)
        decision = Decision()
        for why in found.refused:
            decision = _joined(decision, self._view.failed(why, now))
        return replace(decision, stale=None)

    async def _read_members(self, now: float, is_poll: bool) -> Decision:
        """Read until a member answers as our cluster's, each member once."""
        assert self._session is not None
        decision = Decision()
        for _ in self._session.endpoints:
            snapshot = await self._session.read()
            decision = _joined(decision, self._view.observe(snapshot, now, is_poll))
            if decision.stale is None:
                self._session.watch_after(snapshot.revision)
                break
            await self._session.avoid_current()
        return decision

    async def _leave_host(self) -> None:
        if self._members is not None:
            self._source.set_aside(self._members)
        await self.close()


def _joined(first: Decision, second: Decision) -> Decision:
    """Both one after the other: all events, and the outcome of the second."""
    return Decision(first.events + second.events, first.changed or second.changed, second.stale)
