"""Who an agent is, over real gRPC: its certificate decides, and without a good one it gets nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from controlplane.base import pki, tls
from controlplane.base.pki import Role
from controlplane.fleet.forwarding import insecure_channel
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FleetHost, SimAgent, secure_channel
from tests.support.fleet_scene import SecureScene, ending, secure_scene
from tests.support.pki import TestAuthority


@pytest_asyncio.fixture
async def scene(tmp_path: Path, etcd: EtcdCluster) -> AsyncIterator[SecureScene]:
    async with secure_scene(tmp_path, etcd) as made:
        yield made


async def test_a_certificate_of_another_node_is_refused_and_both_are_named(scene: SecureScene) -> None:
    files = scene.authority.issue(Role.AGENT, "gpu-2")
    async with SimAgent("gpu-1", secure_channel(scene.host.api, files)) as agent:
        await agent.connect()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "gpu-2" in words
        assert "gpu-1" in words
        assert "gpu-1" not in scene.host.term.inventory.nodes


@pytest.mark.parametrize("role", [Role.ADMIN, Role.HOST, Role.GATEWAY])
async def test_a_certificate_of_another_role_is_no_agents(scene: SecureScene, role: Role) -> None:
    files = scene.authority.issue(role, "gpu-1")
    async with SimAgent("gpu-1", secure_channel(scene.host.api, files)) as agent:
        await agent.connect()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert f"{role} gpu-1" in words


async def test_a_certificate_with_alternative_names_alone_is_refused(scene: SecureScene) -> None:
    key = pki.new_key()
    pem = scene.authority.odd(key.public_key(), pki.Identity(Role.AGENT, "gpu-1"), common_name=False)
    ca = scene.authority.authority.certificate_pem
    credentials = grpc.ssl_channel_credentials(ca, pki.key_pem(key), pem)
    channel = grpc.aio.secure_channel(scene.host.api, credentials, options=list(tls.TLS_OPTIONS))
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        code, words = await ending(agent)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "0 common names" in words


async def test_an_agent_without_a_certificate_gets_no_connection(scene: SecureScene) -> None:
    ca = scene.authority.authority.certificate_pem
    channel = grpc.aio.secure_channel(
        scene.host.api, grpc.ssl_channel_credentials(ca), options=list(tls.TLS_OPTIONS)
    )
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        assert (await ending(agent))[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_ca_gets_no_connection(scene: SecureScene, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path / "other").issue(Role.AGENT, "gpu-1").load()
    credentials = grpc.ssl_channel_credentials(
        scene.authority.authority.certificate_pem, other.key_pem, other.certificate_pem
    )
    channel = grpc.aio.secure_channel(scene.host.api, credentials, options=list(tls.TLS_OPTIONS))
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        assert (await ending(agent))[0] is grpc.StatusCode.UNAVAILABLE
    assert "gpu-1" not in scene.host.term.inventory.nodes


async def test_an_expired_certificate_gets_no_connection(tmp_path: Path, etcd: EtcdCluster) -> None:
    then = pki.utc_now() - timedelta(days=1, hours=1)
    authority = TestAuthority(tmp_path, pki.create_authority("test", "a-uuid", then))
    host = FleetHost("host-1", authority.issue(Role.HOST, "host-1"))
    await host.start()
    await host.lead(etcd.endpoints[0])
    expired = authority.issue(Role.AGENT, "gpu-1", now=then, days=1).load(lambda: then)
    channel = grpc.aio.secure_channel(
        host.api, tls.channel_credentials(expired), options=list(tls.TLS_OPTIONS)
    )
    try:
        async with SimAgent("gpu-1", channel) as agent:
            await agent.connect()
            assert (await ending(agent))[0] is grpc.StatusCode.UNAVAILABLE
        assert "gpu-1" not in host.term.inventory.nodes
    finally:
        await host.stop()


@pytest.mark.parametrize("insecure", [False, True])
async def test_without_tls_an_agent_is_believed_only_in_the_insecure_mode(
    etcd: EtcdCluster, insecure: bool
) -> None:
    host = FleetHost("host-1", insecure=insecure)
    await host.start()
    await host.lead(etcd.endpoints[0])
    try:
        async with SimAgent("gpu-1", insecure_channel(host.api)) as agent:
            await agent.connect()
            if insecure:
                await agent.hear("ack")
            else:
                assert (await ending(agent))[0] is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await host.stop()
