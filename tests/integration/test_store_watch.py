"""Watches against a real etcd: order, resumption, re-reads."""

import asyncio
import contextlib
import shutil
from pathlib import Path

from controlplane.store import kv, watch
from controlplane.store.client import EtcdClient
from controlplane.store.errors import StoreError
from controlplane.store.membership import compact
from controlplane.store.watch import Change, Changes, Reread, Watch
from tests.support.etcd import EtcdCluster, run_etcd
from tests.support.procs import wait_until
from tests.support.waiting import eventually


async def put(client: EtcdClient, key: bytes, value: bytes) -> int:
    return (await client.txn([], [kv.put(key, value)], seconds=5.0)).header.revision


async def take(changes: Watch, count: int) -> list[Change]:
    """The next `count` changes; fails on a re-read."""
    found: list[Change] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            item = await anext(changes)
            assert isinstance(item, Changes), item
            found.extend(item.changes)
    return found


async def take_reread(changes: Watch) -> str:
    """The reason of the next re-read; changes before it are passed over."""
    async with asyncio.timeout(60):
        while True:
            item = await anext(changes)
            if isinstance(item, Reread):
                return item.reason


async def test_changes_of_several_prefixes_from_a_revision_on(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        await put(client, b"/a/early", b"0")
        start = await put(client, b"/a/1", b"x")
        async with Watch(client, [b"/a/", b"/b/"], start) as changes:
            assert await take(changes, 1) == [Change(b"/a/1", b"x", start)]
            await put(client, b"/other", b"-")
            at = (await client.txn([], [kv.put(b"/b/1", b"y"), kv.delete(b"/a/1")])).header.revision
            assert sorted(await take(changes, 2), key=lambda c: c.key) == [
                Change(b"/a/1", None, at),
                Change(b"/b/1", b"y", at),
            ]


async def test_a_slow_consumer_loses_nothing(etcd: EtcdCluster) -> None:
    count = watch.QUEUE_ITEMS * 3
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        start = await put(client, b"/s/first", b"")
        async with Watch(client, [b"/s/"], start) as changes:
            await take(changes, 1)
            for number in range(count):
                await put(client, b"/s/n", str(number).encode())
            values = [change.value for change in await take(changes, count)]
        assert values == [str(number).encode() for number in range(count)]


async def test_compacted_history_means_a_reread_and_the_watch_goes_on(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        old = await put(client, b"/c/1", b"1")
        new = await put(client, b"/c/1", b"2")
        await compact(client, new)
        async with Watch(client, [b"/c/", b"/d/"], old) as changes:
            assert "compacted" in await take_reread(changes)
            at = await put(client, b"/d/1", b"3")
            assert await take(changes, 1) == [Change(b"/d/1", b"3", at)]


async def test_another_cluster_means_a_reread(etcd: EtcdCluster, tmp_path: Path) -> None:
    with run_etcd(tmp_path) as other:
        async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
            start = await put(client, b"/e/1", b"1")
            async with Watch(client, [b"/e/"], start) as changes:
                await take(changes, 1)
                client.set_endpoints(other.endpoints)
                assert "cluster id changed" in await take_reread(changes)
                at = await put(client, b"/e/2", b"2")
                assert await take(changes, 1) == [Change(b"/e/2", b"2", at)]


async def test_a_store_that_went_back_means_a_reread(tmp_path: Path) -> None:
    """A wiped member that starts anew under its old name has the old cluster id and a young revision."""
    with run_etcd(tmp_path) as cluster:
        member = cluster.members[0]
        async with EtcdClient(cluster.endpoints, call_seconds=5.0) as client:
            for number in range(20):
                start = await put(client, b"/e/1", str(number).encode())
            async with Watch(client, [b"/e/"], start) as changes:
                await take(changes, 1)
                member.running.kill()
                shutil.rmtree(member.directory)
                cluster.restart(member)
                assert "revision went back" in await take_reread(changes)
                at = await put(client, b"/e/2", b"2")
                assert await take(changes, 1) == [Change(b"/e/2", b"2", at)]


async def test_quiet_prefixes_resume_past_compaction(etcd_cluster: EtcdCluster) -> None:
    """Progress moves the resume point, so a quiet watch survives a compaction of what it did not miss."""
    async with EtcdClient(etcd_cluster.endpoints, call_seconds=5.0) as client:
        start = await put(client, b"/q/1", b"1")
        async with Watch(client, [b"/q/"], start) as changes:
            await take(changes, 1)
            for number in range(5):
                newest = await put(client, b"/loud", str(number).encode())
            await eventually(lambda: changes.resume_revision(b"/q/") > newest, "progress is noted")
            await compact(client, newest)
            serving = changes.endpoint
            victim = next(m for m in etcd_cluster.members if m.endpoint == serving)
            victim.running.kill()
            await asyncio.to_thread(wait_until, etcd_cluster.leader, "a leader")
            at = await put_when_possible(client, b"/q/2")
            assert await take(changes, 1) == [Change(b"/q/2", b"2", at)]


async def put_when_possible(client: EtcdClient, key: bytes) -> int:
    """Create `key` once, through an election."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(StoreError):
                await client.txn([kv.absent(key)], [kv.put(key, b"2")])
            with contextlib.suppress(StoreError):
                pair = await client.get(key)
                if pair is not None:
                    return pair.mod_revision


async def test_a_quiet_watch_stays_where_it_is(etcd: EtcdCluster) -> None:
    """No change for longer than the dead timer is no reason to leave a member."""
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        start = await put(client, b"/n/1", b"1")
        async with Watch(client, [b"/n/", b"/m/"], start + 1) as changes:
            await eventually(lambda: changes.endpoint is not None, "the watch stands")
            sessions = changes.sessions
            await asyncio.sleep(watch.DEAD_SECONDS * 1.5)
            assert changes.sessions == sessions
            at = await put(client, b"/n/1", b"2")
            assert await take(changes, 1) == [Change(b"/n/1", b"2", at)]


async def test_closing_ends_everything(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        before = asyncio.all_tasks()
        for _ in range(3):
            async with Watch(client, [b"/z/"], 1) as changes:
                await put(client, b"/z/1", b"1")
                async with asyncio.timeout(60):
                    await anext(changes)
        # gRPC ends its own task of a cancelled call a moment later.
        await eventually(lambda: asyncio.all_tasks() == before, "no task is left")
