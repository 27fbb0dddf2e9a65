"""A simulated gateway that is to etcd what a real one is, and costs the machine a fraction of it.

The same connections and messages: a linearizable read of the whole card set in each interval, one more after
each event, and a watch of both prefixes that asks for progress every half second. What it reads it does not
decode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
from akv.etcd import etcd_pb2 as pb
from akv.etcd import etcd_pb2_grpc

from controlplane.store import kv, schema
from controlplane.store.watch import PROGRESS_SECONDS

TXN = "/etcdserverpb.KV/Txn"
PREFIXES = (schema.CLUSTER_PREFIX, schema.TARGETS_PREFIX)
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
METADATA = (("hasleader", "true"),)
_READ = pb.TxnRequest(success=[kv.get_prefix(prefix) for prefix in PREFIXES]).SerializeToString()


class LightGateway:
    """`polled` is called with the seconds of each poll, None for one that failed. Seconds throughout."""

    def __init__(
        self, endpoint: str, interval: float, deadline: float, polled: Callable[[float | None], None]
    ) -> None:
        self._endpoint = endpoint
        self._interval = interval
        self._deadline = deadline
        self._polled = polled
        self._wake = asyncio.Event()
        self.ready = asyncio.Event()

    async def run(self, delay: float) -> None:
        """Poll and watch until cancelled."""
        await asyncio.sleep(delay)
        async with (
            grpc.aio.insecure_channel(self._endpoint, options=OPTIONS) as reads,
            grpc.aio.insecure_channel(self._endpoint, options=OPTIONS) as watches,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._watch(etcd_pb2_grpc.WatchStub(watches)))
            await self._poll(reads.unary_unary(TXN, request_serializer=bytes, response_deserializer=len))

    async def _poll(self, read: Any) -> None:
        due = time.monotonic()
        while True:
            start = time.monotonic()
            is_poll = start >= due
            if is_poll:
                due = start + self._interval
            self._wake.clear()
            try:
                await read(_READ, timeout=self._deadline, metadata=METADATA)
                took: float | None = time.monotonic() - start
                self.ready.set()
            except grpc.aio.AioRpcError:
                took = None
            if is_poll:
                self._polled(took)
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _watch(self, stub: Any) -> None:
        call = stub.Watch(metadata=METADATA)
        for watch_id, prefix in enumerate(PREFIXES, start=1):
            create = pb.WatchCreateRequest(key=prefix, range_end=kv.prefix_end(prefix), watch_id=watch_id)
            await call.write(pb.WatchRequest(create_request=create))
        progress = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(call))
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                await call.write(progress)

    async def _follow(self, call: Any) -> None:
        async for response in call:
            if response.events:
                self._wake.set()
