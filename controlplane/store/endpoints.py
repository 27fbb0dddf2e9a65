"""etcd endpoints: one channel each, quarantine for those that don't answer, probes that let them out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from akv.etcd import etcd_pb2, etcd_pb2_grpc

from controlplane.base.addresses import parse_host_port
from controlplane.base.backoff import Backoff, Random
from controlplane.base.logging import get_logger
from controlplane.base.tls import TLS_OPTIONS
from controlplane.store.errors import Refusal, judge

if TYPE_CHECKING:
    from akv.etcd.etcd_pb2_grpc import (
        AuthAsyncStub,
        ClusterAsyncStub,
        KVAsyncStub,
        LeaseAsyncStub,
        MaintenanceAsyncStub,
        WatchAsyncStub,
    )

log = get_logger("etcd-client")

# The server refuses a call at once while it knows no leader, instead of letting it wait.
HAS_LEADER = (("hasleader", "true"),)
PROBE_SECONDS = 0.3
PROBES_BEFORE_NEW_CHANNEL = 4
CLOSE_GRACE_SECONDS = 10.0

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
)


T = TypeVar("T")
# Gives what a new channel shows and trusts; asked for each one, so that renewed certificates come into use.
CredentialsSource = Callable[[], grpc.ChannelCredentials]


class CallFailed(Exception):
    """A gRPC call that ended with a status other than OK."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


async def outcome(call: Awaitable[T]) -> T:
    """The result of a gRPC call. Raises CallFailed.

    A channel that is closed under a call cancels it; that is a failure of the call, and not a cancellation of
    the task that waits for it.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise CallFailed(error.code(), error.details() or error.code().name) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise CallFailed(grpc.StatusCode.CANCELLED, "connection closed") from None


class Endpoint:
    """One etcd member's client address (canonical `host:port`), its channel and stubs."""

    def __init__(self, address: str, credentials: CredentialsSource | None) -> None:
        self.address = address
        self.quarantined = False
        self.failed_probes = 0
        self.closed = False
        self._credentials = credentials
        self._open()

    def _open(self) -> None:
        if self._credentials is None:
            self.channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        else:
            options = (*_OPTIONS, *TLS_OPTIONS)
            self.channel = grpc.aio.secure_channel(self.address, self._credentials(), options=options)
        self.auth: AuthAsyncStub = etcd_pb2_grpc.AuthStub(self.channel)
        self.kv: KVAsyncStub = etcd_pb2_grpc.KVStub(self.channel)
        self.lease: LeaseAsyncStub = etcd_pb2_grpc.LeaseStub(self.channel)
        self.watch: WatchAsyncStub = etcd_pb2_grpc.WatchStub(self.channel)
        self.cluster: ClusterAsyncStub = etcd_pb2_grpc.ClusterStub(self.channel)
        self.maintenance: MaintenanceAsyncStub = etcd_pb2_grpc.MaintenanceStub(self.channel)

    async def renew(self) -> None:
        """Drop the connection, which may be half-open, and start with a fresh channel."""
        old = self.channel
        self._open()
        await old.close()

    async def close(self, grace: float | None = None) -> None:
        """Take no new calls; those under way have `grace` seconds."""
        self.closed = True
        await self.channel.close(grace)

    async def probe(self) -> str | None:
        """Ask whether the member answers and knows a leader; the reason when not.

        etcd tells its status to administrators only, but who is refused for that has passed the question for
        a leader before (measured on 3.5.30): for a gateway, too, it is an answer.
        """
        status = self.maintenance.Status
        try:
            await outcome(status(etcd_pb2.StatusRequest(), timeout=PROBE_SECONDS, metadata=HAS_LEADER))
        except CallFailed as failed:
            return (
                None if judge(failed.code, failed.text).refusal is Refusal.PERMISSION_DENIED else failed.text
            )
        return None


class EndpointPool:
    """The endpoints of one client in order of preference.

    The endpoint that answered last is asked first; quarantined ones come last, and are used only when no
    other is left. A background task probes those in quarantine. Endpoints can be replaced at any time;
    calls that are under way on a removed one end by their own deadlines.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        credentials: CredentialsSource | None,
        uniform: Random = random.random,
    ) -> None:
        self._credentials = credentials
        self._uniform = uniform
        self._endpoints: dict[str, Endpoint] = {}
        self._preferred = 0
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.replace(addresses)
        self._prober = asyncio.create_task(self._probe_forever(), name="etcd-probe")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Canonical addresses in the order in which they were given."""
        return tuple(self._endpoints)

    def replace(self, addresses: Sequence[str]) -> None:
        """Use these endpoints from now on; those that stay keep their channel. ValueError when empty."""
        wanted = list(dict.fromkeys(canonical_endpoint(address) for address in addresses))
        if not wanted:
            raise ValueError("an etcd client needs at least one endpoint (host:port)")
        before = self._endpoints
        current = self.candidates()[0].address if before else wanted[0]
        self._endpoints = {
            address: before.get(address) or Endpoint(address, self._credentials) for address in wanted
        }
        self._preferred = wanted.index(current) if current in wanted else 0
        for address in before.keys() - self._endpoints.keys():
            self._background(before[address].close(CLOSE_GRACE_SECONDS))

    def candidates(self) -> list[Endpoint]:
        """All endpoints, best first."""
        endpoints = list(self._endpoints.values())
        turned = endpoints[self._preferred :] + endpoints[: self._preferred]
        return sorted(turned, key=lambda endpoint: endpoint.quarantined)

    def get(self, address: str) -> Endpoint:
        """The endpoint of one address. Raises KeyError."""
        return self._endpoints[canonical_endpoint(address)]

    def answered(self, endpoint: Endpoint) -> None:
        """`endpoint` gave an answer: out of quarantine, and asked first from now on."""
        if endpoint.quarantined:
            self._release(endpoint)
        addresses = list(self._endpoints)
        if endpoint.address in self._endpoints:
            self._preferred = addresses.index(endpoint.address)

    def avoid(self, endpoint: Endpoint) -> None:
        """Ask the endpoint after this one first from now on, without a judgement of its health."""
        addresses = list(self._endpoints)
        if addresses and addresses[self._preferred] == endpoint.address:
            self._preferred = (self._preferred + 1) % len(addresses)

    def quarantine(self, endpoint: Endpoint) -> None:
        """`endpoint` did not answer: ask others first until a probe succeeds."""
        if not endpoint.quarantined:
            endpoint.quarantined = True
            self.avoid(endpoint)
        self._wake.set()

    async def close(self) -> None:
        """End the probes and close every channel; calls under way are cancelled."""
        self._prober.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._prober, *self._tasks, return_exceptions=True)
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    def _release(self, endpoint: Endpoint) -> None:
        endpoint.quarantined = False
        if endpoint.failed_probes:
            endpoint.failed_probes = 0
            log.info("etcd endpoint answers again", endpoint=endpoint.address)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe_forever(self) -> None:
        backoff = Backoff(0.1, 1.0, uniform=self._uniform)
        while True:
            suspects = [endpoint for endpoint in self._endpoints.values() if endpoint.quarantined]
            if not suspects:
                backoff.reset()
                self._wake.clear()
                await self._wake.wait()
                continue
            await asyncio.gather(*map(self._probe, suspects))
            await asyncio.sleep(backoff.next())

    async def _probe(self, endpoint: Endpoint) -> None:
        """One probe. Only a failed one is logged: a single slow call, as in an election, is no news."""
        if endpoint.closed:
            return
        reason = await endpoint.probe()
        if reason is None:
            if endpoint.quarantined:
                self._release(endpoint)
            return
        endpoint.failed_probes += 1
        if endpoint.failed_probes == 1:
            log.warning("etcd endpoint does not answer", endpoint=endpoint.address, reason=reason)
        if not endpoint.closed and endpoint.failed_probes % PROBES_BEFORE_NEW_CHANNEL == 0:
            await endpoint.renew()


def canonical_endpoint(address: str) -> str:
    """`host:port` in one spelling; an `http://` or `https://` in front, as etcd lists it, is taken off."""
    return str(parse_host_port(address.strip().removeprefix("http://").removeprefix("https://").rstrip("/")))
