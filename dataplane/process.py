"""The dataplane process: engine, gRPC server and their end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import grpc
from akv.v1 import dataplane_pb2_grpc

from controlplane.base.gateway_config import GatewayConfig
from controlplane.base.logging import get_logger
from controlplane.base.namespace_secrets import load_namespace_secrets
from controlplane.base.version import DISTRIBUTION
from dataplane._native import Engine
from dataplane.events import native_log
from dataplane.places import (
    WANTED_DESCRIPTORS,
    PlaceError,
    claim_socket,
    host_uuid,
    private_files,
    raise_descriptor_limit,
)
from dataplane.servicer import DataplaneServicer

DRAIN_MS = 2000
GRPC_GRACE_SECONDS = 1.0
_HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:"

log = get_logger("dataplane")


def make_engine(config: GatewayConfig) -> Engine:
    """Bind the clients' sockets. Raises PlaceError, ConfigError (secrets) or what Engine raises."""
    claim_socket("dataplane_socket", Path(config.dataplane_socket))
    claim_socket("client_socket", Path(config.client_socket))
    host = host_uuid(Path(config.state_dir))
    secrets = load_namespace_secrets(Path(config.namespace_secrets)) if config.namespace_secrets else {}
    return Engine(
        backend=config.storage_backend,
        bind_address=config.bind_address,
        port=config.port,
        client_socket=config.client_socket,
        shared_memory_size=config.shared_memory_size,
        read_cache_size=config.cache_bytes(),
        lend_cached_blocks=config.lend_cached_blocks,
        client_regions=config.client_regions,
        client_regions_size=config.client_regions_size,
        cores=list(config.cores()[:-1]),
        workers=config.thread_pool_size,
        io_timeout_ms=config.io_timeout_ms,
        io_timeout_strikes=config.io_timeout_strikes,
        digests=config.nvme_tcp_digests,
        secrets=secrets,
        host_nqn=_HOST_NQN + host,
        host_uuid=host,
        busy_poll=config.busy_poll,
        short_wakeups=config.short_wakeups,
    )


async def serve(config: GatewayConfig, engine: Engine) -> None:
    """Run until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    limit = raise_descriptor_limit()
    if 0 <= limit < WANTED_DESCRIPTORS:
        log.warning("Descriptor limit is low", limit=limit, wanted=WANTED_DESCRIPTORS)
    with native_log(loop):
        # Python's threads stay off the workers' cores; each worker pins itself.
        if cores := config.cores():
            os.sched_setaffinity(0, {cores[-1]})
        engine.start()
        try:
            async with _control_socket(config, engine):
                log.info(
                    "Dataplane ready",
                    port=config.port,
                    bind_address=config.bind_address,
                    client_socket=config.client_socket,
                    backend=config.storage_backend,
                    workers=config.thread_pool_size,
                )
                await ended.wait()
                log.info("Dataplane stops")
        finally:
            clean = await asyncio.to_thread(engine.stop, DRAIN_MS)
    log.info("Stopped", clean=clean)


@asynccontextmanager
async def _control_socket(config: GatewayConfig, engine: Engine) -> AsyncIterator[None]:
    """DataplaneService on its Unix socket, for the owner alone."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    servicer = DataplaneServicer(engine, config.storage_backend, _version())
    dataplane_pb2_grpc.add_DataplaneServiceServicer_to_server(servicer, server)
    path = config.dataplane_socket
    try:
        with private_files():
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise PlaceError(f"dataplane_socket: {path!r} can't be listened on: {error}") from error
    await server.start()
    try:
        yield
    finally:
        await server.stop(GRPC_GRACE_SECONDS)
        await servicer.close()


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "source tree"
