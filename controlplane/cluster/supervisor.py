"""Keeps the host's etcd member running.

It starts and restarts it, replaces it when its data are lost, damaged or foreign or when the host moved, and
notices when it was removed. A life of the member is: find out what to start (nothing, a new cluster, the data
that are there, or a fresh member that the other hosts agree to), start it, attend to it, and judge its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from controlplane.base.backoff import Backoff, Clock
from controlplane.base.logging import get_logger
from controlplane.cluster.etcd_binary import EtcdBinaryError
from controlplane.cluster.etcd_ends import LOW_DISK_BYTES, EndKind, judge_end
from controlplane.cluster.etcd_runner import (
    EtcdExit,
    EtcdRunner,
    EtcdRunnerError,
    EtcdStart,
    free_bytes,
    set_data_aside,
)
from controlplane.cluster.etcd_wal import MemberIds, data_ids, has_data
from controlplane.cluster.member_places import ALONE, ask_for_place, was_removed
from controlplane.cluster.membership_file import Membership, MembershipFile, MembershipFileError, PeerHost
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust

STARTING_POLL_SECONDS = 0.1
STABLE_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.3, 5.0
BAD_DATA_LIMIT = 3
# How long a member may know no leader before the other hosts are asked whether it still is one.
LONELY_SECONDS = 5.0

log = get_logger("member")


Probe = Callable[[], Awaitable[MemberIds | None]]


class MemberSupervisor:
    """One host's etcd member. `probe` asks it for its ids, within a deadline of its own; None = no answer, or
    it knows no leader.

    `listeners` are set at each change of the membership.
    Raises MembershipFileError from the constructor when what the host knew can't be used.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        runner: EtcdRunner,
        file: MembershipFile,
        probe: Probe,
        trust: Trust,
        clock: Clock = time.monotonic,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._file = file
        self._probe = probe
        self._trust = trust
        self._clock = clock
        self._membership = file.load()
        if self._membership is not None and self._membership.host != settings.host:
            known = self._membership.host
            raise MembershipFileError(
                f"this host is {known} in cluster {self._membership.cluster_name}, but AWC_HOST is "
                f"{settings.host}: set AWC_HOST back, or run remove_node -n {known} first"
            )
        self._changed = asyncio.Event()
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._bad_data_ends = 0
        self._ask_again_at: float | None = None
        self.problem = ""
        self.listeners: list[asyncio.Event] = []

    @property
    def membership(self) -> Membership | None:
        """The host's place in a cluster, or None."""
        return self._membership

    def take_place(self, membership: Membership) -> None:
        """Begin a clean member in this place; a member that runs is stopped first. Raises OSError."""
        self._set(replace(membership, fresh=True))

    def note_peers(self, peers: tuple[PeerHost, ...]) -> None:
        """Remember the other hosts: they are who a host without data turns to."""
        if self._membership is None or not peers or self._membership.peers == peers:
            return
        known = replace(self._membership, peers=peers)
        try:
            self._file.save(known)
        except OSError as error:
            self._report(f"the other hosts can't be written down: {error}")
            return
        self._membership = known

    def creation_complete(self) -> None:
        """The first records of a cluster that was created here are written. Raises OSError."""
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
                try:
                    await self._one_life()
                except (OSError, EtcdBinaryError, EtcdRunnerError) as error:
                    self._report(f"etcd can't be run: {error}")
                    await self._runner.stop()
                    await self._pause()
        finally:
            await self._runner.stop()

    async def _one_life(self) -> None:
        membership = await self._place()
        if membership is None:
            return
        await self._runner.start(self._start_of(membership))
        began = self._clock()
        self._ask_again_at = None
        ended = await self._attend(membership.cluster_uuid)
        if self._clock() - began >= STABLE_SECONDS:
            self._backoff.reset()
            self._bad_data_ends = 0
        if ended is not None:
            await self._judge_end(ended)

    async def _place(self) -> Membership | None:
        """Return the place to start in; None when the question has to be asked again. Raises OSError."""
        while self._membership is None:
            self._changed.clear()
            await self._changed.wait()
        membership, data_dir = self._membership, self._settings.data_dir
        if self._disk_is_full():
            await self._pause()
            return None
        if membership.fresh:
            set_data_aside(data_dir)
            self._set(replace(membership, fresh=False))
            return self._membership
        if membership.peer_url != self._settings.peer_url:
            await self._ask_for_place(membership, self._moved_text(membership))
            return None
        if membership.phase != "creating" and not has_data(data_dir):
            await self._ask_for_place(membership, "etcd's data are lost")
            return None
        if (ids := data_ids(data_dir)) is not None and _foreign(membership, ids):
            self._report(_foreign_text(membership, ids))
            set_data_aside(data_dir)
            return None
        return membership

    def _disk_is_full(self) -> bool:
        """Whether etcd could not write now: it is not started then, and nothing concluded from its data."""
        data_dir = self._settings.data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        full = free_bytes(data_dir) < LOW_DISK_BYTES
        if full:
            self._report(
                f"the disk of {data_dir} is full: free some space; etcd is started then, with the data it has"
            )
        return full

    def _moved_text(self, membership: Membership) -> str:
        text = (
            f"the etcd peer URL of this host changed from {membership.peer_url} to {self._settings.peer_url}"
        )
        if membership.peers:
            return text
        return f"{text}: set AWC_ADDRESS and AWC_ETCD_PEER_PORT back"

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
            flags=self._trust.etcd_flags(),
            reads=(settings.pki_dir,) if self._trust.secure else (),
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
        if membership is None or membership.fresh or membership.cluster_uuid != cluster_uuid:
            return "the host got another place"
        if membership.has_run and not has_data(self._settings.data_dir):
            return "its data directory was lost"
        ids = await self._probe()
        if self._membership is not membership:
            return ""
        if ids is None:
            return await self._reason_of_silence(membership)
        self._ask_again_at = None
        if _foreign(membership, ids):
            set_data_aside(self._settings.data_dir)
            return _foreign_text(membership, ids)
        self.problem = ""
        if not membership.has_run:
            self._set(membership.ran_as(ids.member_id, ids.cluster_id))
            log.info("etcd member runs", member=f"{ids.member_id:x}", etcd_cluster=f"{ids.cluster_id:x}")
        return ""

    async def _reason_of_silence(self, membership: Membership) -> str:
        """A member that was removed while it was cut off may not hear of it: ask the others now and then."""
        now = self._clock()
        if self._ask_again_at is None:
            self._ask_again_at = now + LONELY_SECONDS
        if now < self._ask_again_at:
            return ""
        self._ask_again_at = now + LONELY_SECONDS
        if not await was_removed(self._trust, membership):
            return ""
        set_data_aside(self._settings.data_dir)
        return "the member was removed from the cluster"

    async def _judge_end(self, ended: EtcdExit) -> None:
        """A removed member exits with code 0, and one that never ran with any: ask the others first."""
        membership = self._membership
        if membership is None:
            return
        if (ended.code == 0 or not membership.has_run) and await was_removed(self._trust, membership):
            self._report("the member was removed from the cluster")
            set_data_aside(self._settings.data_dir)
            return
        kind = judge_end(ended, free_bytes(self._settings.data_dir))
        told = f"etcd ended with code {ended.code}" + (f": {ended.last_words}" if ended.last_words else "")
        if kind is EndKind.BAD_DATA:
            self._judge_data(membership, told)
        else:
            self._bad_data_ends = 0
            if kind is EndKind.DISK_FULL:
                told += f"; the disk of {self._settings.data_dir} is full: free some space, the data are kept"
            self._report(told)
        await self._pause()

    def _judge_data(self, membership: Membership, told: str) -> None:
        """Data that etcd can't use, several times in a row, are replaced through the others, if there are."""
        self._bad_data_ends += 1
        if self._bad_data_ends < BAD_DATA_LIMIT:
            self._report(told)
        elif membership.peers:
            self._bad_data_ends = 0
            self._report(f"{told}; its data can't be used, it failed {BAD_DATA_LIMIT} times in a row")
            set_data_aside(self._settings.data_dir)
        else:
            self._report(f"{told}; its data can't be used, and {ALONE}")

    async def _ask_for_place(self, membership: Membership, why: str) -> None:
        await self._runner.stop()  # a container may still run from before this service's start
        answer = await ask_for_place(self._settings, self._trust, membership)
        if self._membership is not membership:
            return
        if answer.place is not None:
            self.take_place(answer.place)
            return
        if answer.left:
            self._leave(answer.left)
            return
        self._report(f"{why}; {answer.awaited}")
        await self._pause()

    def _leave(self, reason: str) -> None:
        log.warning("host left the cluster", reason=reason)
        self._file.remove()
        self._membership = None
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


def _foreign(membership: Membership, ids: MemberIds) -> bool:
    other_member = membership.member_id not in {0, ids.member_id}
    return other_member or membership.etcd_cluster_id not in {0, ids.cluster_id}


def _foreign_text(membership: Membership, ids: MemberIds) -> str:
    return (
        f"its data are of member {ids.member_id:x} in etcd cluster {ids.cluster_id:x}, "
        f"this host is member {membership.member_id:x} in {membership.etcd_cluster_id:x}"
    )
