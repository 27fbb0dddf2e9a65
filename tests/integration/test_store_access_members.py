"""Members of an etcd that asks who calls: what must be asked of raft's leader."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from controlplane.store.access import ROOT_ROLE, add_user, enable_access_control
from controlplane.store.client import EtcdClient
from controlplane.store.errors import Refusal, RequestRefused, StoreError, StoreUnavailable
from controlplane.store.membership import add_learner, list_members, member_status, promote_member
from tests.support.addresses import LoopbackNet
from tests.support.pki import TestAuthority
from tests.support.tls_etcd import TlsEtcd, run_tls_member

pytestmark = pytest.mark.slow
SECONDS = 60.0


async def insist(client: EtcdClient, member_id: int) -> None:
    """Promote a learner; etcd wants it to have caught up, and all members to be connected for 5 s."""
    async with asyncio.timeout(SECONDS):
        while True:
            await prefer_follower(client)
            try:
                await promote_member(client, member_id)
            except RequestRefused as refused:
                if refused.refusal is Refusal.NOT_A_LEARNER:
                    return
                if refused.refusal is not Refusal.LEARNER_NOT_READY:
                    raise
            except StoreUnavailable:
                await asyncio.sleep(0.2)
            else:
                return


async def prefer_follower(client: EtcdClient) -> None:
    """Let a voter that does not lead raft be the one that answered last: it is asked first then."""
    for url in [member.client_urls[0] for member in await list_members(client) if not member.learner]:
        status = await member_status(client, url, seconds=5.0)
        if status.member_id != status.leader_id:
            await member_status(client, url, seconds=5.0)
            return


async def join(client: EtcdClient, member: TlsEtcd) -> int:
    """Wait until a learner that was started answers; its id."""
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(StoreError):
                return (await member_status(client, member.client_url)).member_id
            await asyncio.sleep(0.1)


async def add(client: EtcdClient, peer_url: str) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await add_learner(client, peer_url)
                return
            await asyncio.sleep(0.2)


async def test_a_learner_is_promoted_whichever_member_is_asked_first(tmp_path: Path) -> None:
    """A follower would hand the question on without the caller's name, and it would never be answered."""
    authority, net = TestAuthority(tmp_path / "pki"), LoopbackNet.pick()
    known: list[str] = []
    with contextlib.ExitStack() as stack:

        def start(number: int) -> TlsEtcd:
            name = f"storage-{number}"
            member = run_tls_member(tmp_path, authority, name, net.host(number), tuple(known))
            started = stack.enter_context(member)
            known.append(f"{name}={started.peer_url}")
            return started

        first = start(1)
        async with first.client(first.host_files, 15.0) as client:
            await enable_access_control(client, "storage-1")
            for number in (2, 3):
                await add_user(client, f"storage-{number}", ROOT_ROLE)
                await add(client, f"https://{net.host(number)}:2380")
                member = start(number)
                client.set_endpoints([member.client_url, *client.endpoints])
                learner = await join(client, member)
                await insist(client, learner)
            assert not any(m.learner for m in await list_members(client))
