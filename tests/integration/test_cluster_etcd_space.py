"""etcd out of space: the service beside the raft leader frees it, without a leader of ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.base.credentials import CredentialFiles
from controlplane.base.tls import NewestCredentials
from controlplane.cluster.etcd_space import FIRST_PAUSE, SpaceKeeper
from controlplane.cluster.event_log import EventLog
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.membership_file import Membership, PeerHost
from controlplane.cluster.settings import ClusterSettings, load_settings
from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable
from controlplane.store.lease import Lease
from controlplane.store.membership import list_alarms
from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import ClusterHost, cli_json, cluster_hosts
from tests.support.etcd import EtcdCluster, EtcdMember, run_etcd
from tests.support.manual_clock import ManualClock
from tests.support.procs import wait_until

pytestmark = pytest.mark.slow

QUOTA = 2 << 20


@pytest.fixture
async def full(tmp_path: Path, loopback_net: LoopbackNet) -> AsyncIterator[EtcdCluster]:
    """Three members whose small quota is used up by old versions of one key."""
    with run_etcd(tmp_path / "etcd", 3, loopback_net, ("--quota-backend-bytes", str(QUOTA))) as cluster:
        async with EtcdClient(cluster.endpoints, call_seconds=10.0) as client:
            with pytest.raises(StoreUnavailable, match="space exceeded"):
                await overwrite(client, b"/one")
        yield cluster


async def overwrite(client: EtcdClient, key: bytes, times: int = 200) -> None:
    for _ in range(times):
        await client.txn([], [kv.put(key, b"x" * 100_000)])


def settings_of(member: EtcdMember, directory: Path, quota: int = QUOTA) -> ClusterSettings:
    environment = {"AWC_HOST": member.name, "AWC_ADDRESS": member.host, "AWC_SECURITY": "insecure-loopback"}
    directory.mkdir(exist_ok=True)
    return replace(load_settings(directory, environment), etcd_quota_bytes=quota)


async def keeper_of(
    member: EtcdMember,
    cluster: EtcdCluster,
    directory: Path,
    quota: int = QUOTA,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[SpaceKeeper, EtcdLink]:
    link = EtcdLink(f"http://{member.endpoint}")
    peers = tuple(PeerHost(m.name, "", f"http://{m.endpoint}") for m in cluster.members if m is not member)
    await link.follow(Membership("member", member.name, member.peer_url, "u", "c", "", peers=peers))
    settings = settings_of(member, directory, quota)
    return SpaceKeeper(settings, link, EventLog(settings.host, link), clock=clock), link


async def test_only_the_service_beside_the_raft_leader_acts_and_writes_work_again(
    full: EtcdCluster, tmp_path: Path
) -> None:
    async with EtcdClient(full.endpoints, call_seconds=10.0) as client:
        with pytest.raises(StoreUnavailable, match="space exceeded"):
            await Lease.grant(client, 5)
        follower, link = await keeper_of(full.follower(), full, tmp_path / "f")
        await follower.cycle()
        await link.close()
        assert [alarm.kind for alarm in await list_alarms(client)] != []
        leader, link = await keeper_of(full.leader(), full, tmp_path / "l")
        async with asyncio.timeout(30):
            while await list_alarms(client):  # an election may pass between two cycles
                await leader.cycle()
        await link.close()
        lease = await Lease.grant(client, 5)
        await lease.close()
        assert (await client.txn([], [kv.put(b"/small", b"x")])).succeeded
        sizes = [int(member.call("maintenance/status")["dbSize"]) for member in full.members]
        assert max(sizes) < QUOTA / 2, "every member's file shrank"


async def test_records_that_fill_the_quota_are_told_and_the_alarm_stays(
    full: EtcdCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    keeper, link = await keeper_of(full.leader(), full, tmp_path / "l", quota=64 << 10, clock=clock)
    for _ in range(5):
        await keeper.cycle()
    clock.now += FIRST_PAUSE
    await keeper.cycle()
    await link.close()
    lines = capfd.readouterr().out.splitlines()
    told = [line for line in lines if "etcd space not freed" in line]
    # Each time every member stands still for a while: it is not done again in every cycle.
    assert sum("etcd history compacted" in line for line in lines) == 2
    async with EtcdClient(full.endpoints, call_seconds=10.0) as client:
        assert [alarm.kind for alarm in await list_alarms(client)] != []
    assert len(told) == 1, told
    assert "raise AWC_ETCD_QUOTA_BYTES" in told[0]


@pytest.mark.parametrize("secure", [False, True], ids=["insecure", "mtls"])
def test_a_service_frees_its_etcd_and_notes_it(
    tmp_path: Path, loopback_net: LoopbackNet, *, secure: bool
) -> None:
    quota = {"AWC_ETCD_QUOTA_BYTES": str(QUOTA)}
    with cluster_hosts(tmp_path, loopback_net, 1, secure=secure, **quota) as (host,):
        cli_json(host, "create_cluster", "--name", "kv-cache")
        asyncio.run(fill(host))
        host.running.wait_event("etcd is out of space", 30.0)
        host.running.wait_event("etcd alarm disarmed", 30.0)
        told = wait_until(
            lambda: [e for e in cli_json(host, "events")["events"] if "out of space" in e["text"]],
            "the event",
            30.0,
        )
        assert told[0]["kind"] == "alarm"


async def fill(host: ClusterHost) -> None:
    """Overwrite one key until etcd takes no more; the service may free it meanwhile."""
    credentials = NewestCredentials(CredentialFiles.in_directory(host.pki_dir)) if host.secure else None
    async with EtcdClient([f"{host.address}:2379"], call_seconds=5.0, credentials=credentials) as client:
        with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
            await overwrite(client, b"/big")
