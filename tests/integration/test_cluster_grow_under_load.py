"""1, 3, 5 and 3 members again while gateways poll and keys are written: no poll fails."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controlplane.base.addresses import parse_host_port
from controlplane.gateway.members import MemberSource
from controlplane.gateway.reader import ClusterReader
from controlplane.model.debounce import PollLimits
from controlplane.model.view import GatewayView
from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_program
from tests.support.cluster_hosts import ClusterHost, ask_cluster, cli_json, cluster_hosts, wait_voters
from tests.support.procs import wait_until

pytestmark = pytest.mark.slow

GATEWAYS = 4
# The product's deadline is 0.5 s (cluster_etcd_timeout_ms); a shared machine needs more to be fair.
POLL_SECONDS = float(os.environ.get("AKV_TEST_POLL_SECONDS", "2"))
VALUE = b"x" * 2048


class Gateway:
    """Polls as a gateway does, ten times a second; keeps what went wrong and the slowest poll."""

    def __init__(self, hosts: list[ClusterHost]) -> None:
        source = MemberSource([parse_host_port(host.api) for host in hosts], POLL_SECONDS)
        self.view = GatewayView(PollLimits(), 128)
        self.reader = ClusterReader(source, self.view, POLL_SECONDS, asyncio.Event())
        self.failed: list[str] = []
        self.polls = 0
        self.slowest = 0.0

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            decision = await self.reader.read(began, True)
            self.polls += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            if decision.stale is not None:
                self.failed.append(decision.stale)
            await asyncio.sleep(0.1)


async def write_on(hosts: list[ClusterHost], counts: dict[str, int]) -> None:
    """Keep writing keys that are no records; a write may fail (the quorum moves), but not for long."""
    async with EtcdClient([f"{host.address}:2379" for host in hosts], call_seconds=POLL_SECONDS) as client:
        number = 0
        while True:
            number += 1
            try:
                await client.txn([], [kv.put(b"/load/%d" % (number % 500), VALUE)])
                counts["written"] += 1
            except (StoreUnavailable, OutcomeUnknown):
                counts["failed"] += 1
            await asyncio.sleep(0.005)


@asynccontextmanager
async def under_load(hosts: list[ClusterHost]) -> AsyncIterator[tuple[list[Gateway], dict[str, int]]]:
    gateways = [Gateway(hosts) for _ in range(GATEWAYS)]
    counts = {"written": 0, "failed": 0}
    tasks = [asyncio.create_task(gateway.run()) for gateway in gateways]
    tasks += [asyncio.create_task(gateway.reader.keep_members(0.2)) for gateway in gateways]
    tasks.append(asyncio.create_task(write_on(hosts, counts)))
    try:
        yield gateways, counts
        assert not [task for task in tasks if task.done()], "the load went on to the end"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for gateway in gateways:
            await gateway.reader.close()


def raft_leader(hosts: list[ClusterHost]) -> str:
    """The host whose etcd member leads raft."""
    for host in hosts:
        status = host.etcd.status()
        if status is not None and status["header"]["member_id"] == status.get("leader"):
            return host.name
    raise AssertionError("no raft leader among the hosts")


async def ask(host: ClusterHost, *arguments: str) -> None:
    """clustercli, beside the load."""
    await asyncio.to_thread(cli_json, host, *arguments, run=run_program)


async def voters(host: ClusterHost, number: int) -> None:
    await asyncio.to_thread(wait_voters, host, number, 60.0)


async def test_no_poll_fails_while_members_come_and_go(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with cluster_hosts(tmp_path, loopback_net, 5) as hosts:
        first = hosts[0]
        await ask(first, "create_cluster", "--name", "kv-cache")
        async with under_load(hosts) as (gateways, counts):
            for host in hosts[1:3]:
                await ask(host, "add_node", "-n", first.api)
            await voters(first, 3)
            for host in hosts[3:]:
                await ask(host, "add_node", "-n", first.api)
            await voters(first, 5)
            shown = await asyncio.to_thread(ask_cluster, first)
            assert shown["etcd_quorum"] == {"members": 5, "tolerated_failures": 2}
            # Our leader goes, and raft's, which gateways notice most; or another when they are one.
            names = [await asyncio.to_thread(raft_leader, hosts), shown["leader"], "host-5", "host-4"]
            leaving = [next(h for h in hosts if h.name == name) for name in list(dict.fromkeys(names))[:2]]
            staying = [host for host in hosts if host not in leaving]
            for host in leaving:
                await ask(staying[0], "remove_node", "-n", host.name)
            await voters(staying[0], 3)
            goal = [gateway.polls + 10 for gateway in gateways]
            await asyncio.to_thread(
                wait_until,
                lambda: all(g.polls >= polls for g, polls in zip(gateways, goal, strict=True)),
                "ten more polls of each",
                30.0,
            )
        slowest = max(gateway.slowest for gateway in gateways)
        print(f"polls {sum(g.polls for g in gateways)}, slowest {slowest:.3f} s, writes {counts}")
        assert [gateway.failed for gateway in gateways] == [[]] * GATEWAYS
        assert counts["written"] > 100
        shown = await asyncio.to_thread(ask_cluster, staying[0])
        assert shown["etcd_quorum"] == {"members": 3, "tolerated_failures": 1}
