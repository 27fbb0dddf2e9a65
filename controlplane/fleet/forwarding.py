"""Calls of the fleet's API that a standby hands to the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from akv.v1 import fleet_pb2_grpc

from controlplane.base.request_errors import Unavailable

# Set on a forwarded call, so that two hosts that take each other for the leader do not pass it to and fro.
FORWARDED_METADATA = "akv-forwarded-by"

ChannelFactory = Callable[[str], grpc.aio.Channel]


def insecure_channel(target: str) -> grpc.aio.Channel:
    """A channel without encryption: for the insecure mode, which was asked for by name."""
    return grpc.aio.insecure_channel(
        target, options=[("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    )


class Forwarder:
    """One channel to the host that leads now, made when it is first needed."""

    def __init__(self, host: str, channel: ChannelFactory) -> None:
        self._host = host
        self._make = channel
        self._target = ""
        self._channel: grpc.aio.Channel | None = None

    async def call(self, leader_api: str, method: str, request: Any, seconds: float) -> Any:
        """The leader's answer. Raises AioRpcError as the leader refuses, Unavailable when it is not known."""
        if not leader_api:
            raise Unavailable("no host leads at the moment: ask again in a few seconds")
        channel = await self._to(leader_api)
        stub = fleet_pb2_grpc.FleetServiceStub(channel)
        forwarded = ((FORWARDED_METADATA, self._host),)
        return await getattr(stub, method)(request, timeout=seconds, metadata=forwarded)

    async def close(self) -> None:
        """Close the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _to(self, leader_api: str) -> grpc.aio.Channel:
        if self._channel is None or leader_api != self._target:
            await self.close()
            self._channel, self._target = self._make(leader_api), leader_api
        return self._channel
