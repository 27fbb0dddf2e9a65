"""Hosts that are taken out at the same time, through different hosts: one stays, for someone has to lead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.base.request_errors import RequestError
from controlplane.cluster.hosts_admin import HostsAdmin
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.membership_file import Membership
from controlplane.model.cards import ClusterConfig, HostRecord
from controlplane.store.client import EtcdClient
from controlplane.store.hosts import read_host, update_host
from controlplane.store.writes import create_cluster
from tests.support.etcd import EtcdCluster

MEMBER = Membership("member", "h1", "http://h1:2380", "uuid", "kv-cache", "")
HOSTS = ("h1", "h2", "h3")


class Events:
    """Takes events and keeps none."""

    def note(self, kind: str, subject: str, text: str) -> None:
        """Forget it."""


async def fill(client: EtcdClient) -> None:
    await create_cluster(client, ClusterConfig("kv-cache", 1.0, "uuid"))
    for host in HOSTS:
        await write(client, HostRecord(host, True, False, {"etcd_peer": f"http://{host}:2380"}))


async def write(client: EtcdClient, record: HostRecord) -> None:
    await update_host(client, record.host, lambda _: record)


async def enabled(client: EtcdClient) -> list[str]:
    records = [await read_host(client, host) for host in HOSTS]
    return [record.host for record in records if record is not None and record.enabled]


@pytest.mark.parametrize("order", [HOSTS, HOSTS[:2]], ids=["three", "two"])
async def test_of_hosts_that_are_taken_out_at_the_same_time_one_stays(
    etcd: EtcdCluster, order: tuple[str, ...]
) -> None:
    links = [EtcdLink(etcd.endpoints[0]) for _ in order]
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        await fill(client)
        if len(order) == 2:
            await write(client, HostRecord("h3", False, False, {}))
        supervisor: Any = SimpleNamespace(membership=MEMBER)
        for link in links:
            await link.follow(MEMBER)
            link.client.call_seconds = 5.0
        outcomes = await asyncio.gather(
            *(
                HostsAdmin(supervisor, link, Events()).remove_node(host, False, 30.0)
                for host, link in zip(order, links, strict=True)
            ),
            return_exceptions=True,
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert [type(error) for error in refused] == [RequestError], outcomes
        assert "is the cluster's last host" in str(refused[0])
        assert len(await enabled(client)) == 1
    for link in links:
        await link.close()
