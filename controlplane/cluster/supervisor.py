"""Keeps the host's etcd member running.

It starts and restarts it, replaces it when its data are lost or foreign, and notices when it was removed.
A life of the member is: find out what to start (nothing, a new cluster, the data that are there, or a
fresh member that the other hosts agree to), start it, attend to it, and judge its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controlplane.base.backoff import Backoff, Clock
from controlplane.base.logging import get_logger
from controlplane.cluster import member_client
from controlplane.cluster.errors import ClusterError, NotFound, Unavailable
from controlplane.cluster.etcd_binary import EtcdBinaryError
from controlplane.cluster.etcd_runner import EtcdExit, EtcdRunner, EtcdStart, set_data_aside
from controlplane.cluster.etcd_wal import MemberIds, data_ids, has_data
from controlplane.cluster.membership_file import Membership, MembershipFile, PeerHost
from controlplane.cluster.settings import ClusterSettings

STARTING_POLL_SECONDS = 0.1
STABLE_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.3, 5.0
# Go's exit code of a panic. etcd panics when its log is truncated, older than the cluster's, or another
# member's; a taken port or a bad flag ends it with 1.
PANIC = 2
PANICS_LIMIT = 3

log = get_logger("member")


Probe = Callable[[], Awaitable[MemberIds | None]]


class MemberSupervisor:
    """One host's etcd member. `probe` asks it for its ids, within a deadline of its own; None = no answer.

    `listeners` are set at each change of the membership.
    Raises MembershipFileError from the constructor when what the host knew can't be read.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        runner: EtcdRunner,
        file: MembershipFile,
        probe: Probe,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._file = file
        self._probe = probe
        self._clock = clock
        self._membership = file.load()
        self._granted = False  # a place that was just given: start clean, whatever lies in the data directory
        self._changed = asyncio.Event()
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._panics = 0
        self.problem = ""
        self.listeners: list[asyncio.Event] = []

    @property
    def membership(self) -> Membership | None:
        """The host's place in a cluster, or None."""
        return self._membership

    def take_place(self, membership: Membership) -> None:
        """Begin a clean member in this place; a member that runs is stopped first."""
        self._granted = True
        self._set(membership)

    def note_peers(self, peers: tuple[PeerHost, ...]) -> None:
        """Remember the other hosts: they are who a host without data turns to."""
        if self._membership is not None and peers and self._membership.peers != peers:
            self._membership = replace(self._membership, peers=peers)
            self._file.save(self._membership)

    def creation_complete(self) -> None:
        """The first records of a cluster that was created here are written."""
        if self._membership is not None and self._membership.phase == "creating":
            self._set(replace(self._membership, phase="member"))

    async def wait_member(self, seconds: float) -> Membership:
        """Wait until the host is a member in full. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while self._membership is None or self._membership.phase != "member":
                self._changed.clear()
                await self._changed.wait()
            return self._membership

    async def run(self) -> None:
        """Supervise until cancelled, then stop the member."""
        try:
            while True:
                await self._one_life()
        finally:
            await self._runner.stop()

    async def _one_life(self) -> None:
        membership = await self._place()
        if membership is None:
            return
        try:
            await self._runner.start(self._start_of(membership))
        except (OSError, EtcdBinaryError) as error:
            self._report(f"etcd can't be started: {error}")
            await self._pause()
            return
        began = self._clock()
        ended = await self._attend(membership.cluster_uuid)
        if self._clock() - began >= STABLE_SECONDS:
            self._backoff.reset()
            self._panics = 0
        if ended is not None:
            await self._judge_end(ended)

    async def _place(self) -> Membership | None:
        """Return the place to start in; None when the question has to be asked again."""
        while self._membership is None:
            self._changed.clear()
            await self._changed.wait()
        data_dir = self._settings.data_dir
        if self._granted:
            self._granted = False
            set_data_aside(data_dir)
        elif self._membership.phase != "creating" and not has_data(data_dir):
            await self._ask_for_place(self._membership)
            return None
        elif (ids := data_ids(data_dir)) is not None and _foreign(self._membership, ids):
            self._report(_foreign_text(self._membership, ids))
            set_data_aside(data_dir)
            return None
        return self._membership

    def _start_of(self, membership: Membership) -> EtcdStart:
        settings = self._settings
        return EtcdStart(
            name=settings.host,
            client_url=settings.client_url,
            peer_url=settings.peer_url,
            data_dir=settings.data_dir,
            log_dir=settings.log_dir,
            initial_cluster=membership.initial_cluster,
            state="new" if membership.phase == "creating" else "existing",
            token=membership.cluster_uuid,
            quota_bytes=settings.etcd_quota_bytes,
        )

    async def _attend(self, cluster_uuid: str) -> EtcdExit | None:
        """Watch a running member; None when it was stopped on purpose."""
        end = asyncio.create_task(self._runner.wait(), name="etcd-end")
        try:
            while True:
                await asyncio.wait({end}, timeout=self._poll_seconds())
                if end.done():
                    return end.result()
                reason = await self._reason_to_stop(cluster_uuid)
                if reason:
                    self._report(f"etcd is stopped: {reason}")
                    await self._runner.stop()
                    return None
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    def _poll_seconds(self) -> float:
        settled = self._membership is not None and self._membership.has_run
        return min(1.0, self._settings.cycle_seconds) if settled else STARTING_POLL_SECONDS

    async def _reason_to_stop(self, cluster_uuid: str) -> str:
        membership = self._membership
        if membership is None or self._granted or membership.cluster_uuid != cluster_uuid:
            return "the host got another place"
        if membership.has_run and not has_data(self._settings.data_dir):
            return "its data directory was lost"
        ids = await self._probe()
        if ids is None or self._membership is not membership:
            return ""
        if _foreign(membership, ids):
            set_data_aside(self._settings.data_dir)
            return _foreign_text(membership, ids)
        self.problem = ""
        if not membership.has_run:
            self._set(membership.ran_as(ids.member_id, ids.cluster_id))
            log.info("etcd member runs", member=f"{ids.member_id:x}", etcd_cluster=f"{ids.cluster_id:x}")
        return ""

    async def _judge_end(self, ended: EtcdExit) -> None:
        """A removed member exits with code 0, but so may one that was told to: ask the others first."""
        membership = self._membership
        if membership is not None and ended.code == 0 and await self._was_removed(membership):
            self._report("the member was removed from the cluster")
            set_data_aside(self._settings.data_dir)
            return
        self._report(f"etcd ended with code {ended.code}: {ended.last_words}")
        self._panics = self._panics + 1 if ended.code == PANIC else 0
        if self._panics >= PANICS_LIMIT and membership is not None and membership.peers:
            self._panics = 0
            self._report(f"its data can't be used, etcd panicked {PANICS_LIMIT} times in a row")
            set_data_aside(self._settings.data_dir)
        await self._pause()

    async def _was_removed(self, membership: Membership) -> bool:
        for peer in membership.peers:
            try:
                answer = await member_client.members_of(peer.api)
            except ClusterError:
                continue
            if answer.cluster_uuid == membership.cluster_uuid:
                return f"{membership.member_id:016x}" not in {m.member_id for m in answer.members}
        return False

    async def _ask_for_place(self, membership: Membership) -> None:
        """Ask the other hosts, in turn, for a fresh member in place of the lost one."""
        if not membership.peers:
            self._report(
                "etcd's data are lost and no other host has them: restore the data directory, or remove "
                "member.json and create the cluster anew"
            )
        request = member_client.join_request(self._settings, rejoin=True)
        for peer in membership.peers:
            try:
                answer = await member_client.join(peer.api, request)
            except Unavailable as error:
                self._report(f"etcd's data are lost; {error}")
                continue
            except NotFound as error:
                self._leave(str(error))
                return
            except ClusterError as error:
                self._report(f"etcd's data are lost; {peer.host} gives no new place: {error}")
                continue
            if answer.cluster_uuid != membership.cluster_uuid:
                self._report(
                    f"{peer.host} is now in another cluster, {answer.cluster_uuid}; it can give no place"
                )
                continue
            if answer.accepted:
                self.take_place(place_of(answer, membership.peers))
                return
            self._report(f"etcd's data are lost; a new place is asked for: {answer.reason}")
        await self._pause()

    def _leave(self, reason: str) -> None:
        log.warning("host left the cluster", reason=reason)
        self._membership = None
        self._file.remove()
        self.problem = reason
        self._backoff.reset()
        self._announce()

    def _set(self, membership: Membership) -> None:
        self._file.save(membership)
        self._membership = membership
        self._backoff.reset()
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        for listener in self.listeners:
            listener.set()

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            log.warning("no etcd member", reason=problem)

    async def _pause(self) -> None:
        """Wait before the next try, shorter when the place changes meanwhile."""
        self._changed.clear()
        try:
            async with asyncio.timeout(self._backoff.next()):
                await self._changed.wait()
        except TimeoutError:
            return


def place_of(answer: member_client.Join, peers: tuple[PeerHost, ...]) -> Membership:
    """Return the place that an accepted join gives."""
    return Membership(
        phase="joining",
        cluster_uuid=answer.cluster_uuid,
        cluster_name=answer.cluster_name,
        initial_cluster=answer.initial_cluster,
        member_id=int(answer.member_id, 16),
        peers=peers,
    )


def _foreign(membership: Membership, ids: MemberIds) -> bool:
    other_member = membership.member_id not in {0, ids.member_id}
    return other_member or membership.etcd_cluster_id not in {0, ids.cluster_id}


def _foreign_text(membership: Membership, ids: MemberIds) -> str:
    return (
        f"its data are of member {ids.member_id:x} in etcd cluster {ids.cluster_id:x}, "
        f"this host is member {membership.member_id:x} in {membership.etcd_cluster_id:x}"
    )
