"""Who an agent is, over real gRPC: its certificate decides, and without a good one it gets nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from controlplane.base import pki, tls
from controlplane.base.credentials import Credentials
from controlplane.base.pki import Role
from tests.support.etcd import EtcdCluster
from tests.support.fleet import FleetHost, SimAgent, leading
from tests.support.fleet_scene import ending
from tests.support.pki import TestAuthority


async def refused(host: FleetHost, channel: grpc.aio.Channel) -> tuple[grpc.StatusCode, str]:
    """How the stream of gpu-1 ends over this channel; the node is not known after it."""
    async with SimAgent("gpu-1", channel) as agent:
        await agent.connect()
        found = await ending(agent)
    assert "gpu-1" not in host.term.inventory.nodes
    return found


def channel_with(host: FleetHost, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(host.api, credentials, options=list(tls.TLS_OPTIONS))


def showing(host: FleetHost, shown: Credentials) -> grpc.aio.Channel:
    """A channel of one who trusts the host and shows this certificate."""
    ca = host.authority.authority.certificate_pem
    return channel_with(host, grpc.ssl_channel_credentials(ca, shown.key_pem, shown.certificate_pem))


async def test_a_certificate_of_another_node_is_refused_and_both_are_named(host: FleetHost) -> None:
    code, words = await refused(host, host.channel(Role.AGENT, "gpu-2"))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert words == "the certificate is for agent gpu-2, not for agent gpu-1"


@pytest.mark.parametrize("role", [Role.ADMIN, Role.HOST, Role.GATEWAY])
async def test_a_certificate_of_another_role_is_no_agents(host: FleetHost, role: Role) -> None:
    code, words = await refused(host, host.channel(role, "gpu-1"))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert words == f"the certificate is for {role} gpu-1, not for agent gpu-1"


async def test_a_certificate_with_alternative_names_alone_is_refused(host: FleetHost) -> None:
    key = pki.new_key()
    pem = host.authority.odd(key.public_key(), pki.Identity(Role.AGENT, "gpu-1"), common_name=False)
    ca = host.authority.authority.certificate_pem
    credentials = grpc.ssl_channel_credentials(ca, pki.key_pem(key), pem)
    code, words = await refused(host, channel_with(host, credentials))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "the certificate that was shown can't be used" in words
    assert "0 common names" in words


# What gRPC says of a host that ends the connection in or just after the handshake: which of them depends on
# how far the caller was.
ENDED = ("Socket closed", "Connection reset by peer", "Broken pipe", "Stream removed")


async def test_an_agent_without_a_certificate_gets_no_connection(host: FleetHost) -> None:
    """The status is not UNAUTHENTICATED: decision 0011."""
    ca = host.authority.authority.certificate_pem
    code, words = await refused(host, channel_with(host, grpc.ssl_channel_credentials(ca)))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert any(ended in words for ended in ENDED), words


async def test_a_certificate_of_another_ca_gets_no_connection(host: FleetHost, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path).issue(Role.AGENT, "gpu-1").load()
    code, words = await refused(host, showing(host, other))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert any(ended in words for ended in ENDED), words


async def test_a_host_of_another_ca_is_not_talked_to(host: FleetHost, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path).issue(Role.AGENT, "gpu-1").load()
    code, words = await refused(host, channel_with(host, tls.channel_credentials(other)))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in words


async def test_an_expired_certificate_gets_no_connection(tmp_path: Path, etcd: EtcdCluster) -> None:
    """The same CA, key and name twice: valid, and expired an hour ago."""
    then = pki.utc_now() - timedelta(days=1, hours=1)
    authority = TestAuthority(tmp_path, pki.create_authority("test", "a-uuid", then))
    async with leading(etcd, authority=authority) as host:
        expired = authority.issue(Role.AGENT, "gpu-1", now=then, days=1).load(lambda: then)
        code, words = await refused(host, showing(host, expired))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert any(ended in words for ended in ENDED), words
        authority.issue(Role.AGENT, "gpu-1")
        async with host.agent() as agent:
            await agent.connect()
            await agent.hear("ack")


async def test_without_tls_nobody_is_believed(etcd: EtcdCluster) -> None:
    async with leading(etcd, plaintext=True) as host:
        code, words = await refused(host, host.channel(Role.AGENT, "gpu-1"))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert "over TLS with a certificate only" in words


async def test_without_tls_an_agent_is_believed_in_the_insecure_mode(etcd: EtcdCluster) -> None:
    async with leading(etcd, insecure=True) as host, host.agent() as agent:
        await agent.connect()
        await agent.hear("ack")
