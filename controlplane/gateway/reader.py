"""Reads the cluster for the view: finds members, reads a snapshot, goes on to the next host if it must."""

from __future__ import annotations

import asyncio
from contextlib import suppress

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
        self._refused: list[str] = []
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
                session = await self._open()
                before = _joined(before, self._tell_refused(now))
                decision = await self._read_members(session, now, is_poll)
            except (StoreError, MembersError) as error:
                self._refresh.set()
                return _joined(before, self._view.failed(str(error), now))
            decision = _joined(before, decision)
            if decision.stale is None:
                break
            await self._leave_host()
        return decision

    async def keep_members(self, pause: float) -> None:
        """Refresh the members every REFRESH_SECONDS, sooner (after `pause`) when a read failed."""
        while True:
            await asyncio.sleep(pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._refresh.wait()
            self._refresh.clear()
            await self.refresh_members()

    async def refresh_members(self) -> None:
        """Ask for the members again; when no host answers, those that are known stay in use."""
        session = self._session
        if session is None:
            return
        try:
            members = await self._find()
        except MembersError:
            return  # the source has told why
        if session is self._session:
            session.use_endpoints(members.endpoints)

    async def _open(self) -> EtcdSession:
        """The session; where there is none, with members that are asked for now."""
        if self._session is None:
            self._members = await self._find()
            self._session = EtcdSession(
                self._members.endpoints, self._seconds, self._wake, self._source.credentials
            )
        return self._session

    async def _find(self) -> Members:
        found = await self._source.find(self._view.refuses_uuid)
        self._refused += found.refused
        return found.members

    def _tell_refused(self, now: float) -> Decision:
        """Hosts that are not our cluster's are stale, although another one will answer."""
        decision = Decision()
        for why in self._refused:
            decision = _joined(decision, self._view.failed(why, now))
        self._refused.clear()
        return decision

    async def _read_members(self, session: EtcdSession, now: float, is_poll: bool) -> Decision:
        """Read until a member answers as our cluster's, each member once."""
        decision = Decision()
        for _ in session.endpoints:
            snapshot = await session.read()
            decision = _joined(decision, self._view.observe(snapshot, now, is_poll))
            if decision.stale is None:
                session.watch_after(snapshot.revision)
                break
            await session.avoid_current()
        return decision

    async def _leave_host(self) -> None:
        if self._members is not None:
            self._source.set_aside(self._members)
        await self.close()


def _joined(first: Decision, second: Decision) -> Decision:
    """Both one after the other: all events, and the outcome of the second."""
    return Decision(first.events + second.events, first.changed or second.changed, second.stale)
