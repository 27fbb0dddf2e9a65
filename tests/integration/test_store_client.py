"""The client against a real etcd, with dead and silent endpoints beside it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from akv.etcd import etcd_pb2 as pb

from controlplane.base.addresses import AddressError
from controlplane.store import kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, Refusal, RequestRefused, StoreUnavailable
from tests.support.addresses import LoopbackNet, free_port
from tests.support.blackhole import black_hole
from tests.support.etcd import EtcdCluster
from tests.support.waiting import eventually


def dead_endpoint(net: LoopbackNet) -> str:
    host = net.host(200)
    return f"{host}:{free_port(host)}"


async def test_transactions_read_and_write(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        assert await client.get(b"/k") is None
        first = await client.txn([kv.absent(b"/k")], [kv.put(b"/k", b"1")])
        assert first.succeeded
        again = await client.txn([kv.absent(b"/k")], [kv.put(b"/k", b"2")], [kv.get(b"/k")])
        assert not again.succeeded
        assert again.responses[0].response_range.kvs[0].value == b"1"
        pair = await client.get(b"/k")
        assert pair is not None
        assert (pair.value, pair.mod_revision) == (b"1", first.header.revision)
        assert client.cluster_id == first.header.cluster_id


async def test_endpoint_spellings_and_bad_ones(etcd: EtcdCluster) -> None:
    address = etcd.endpoints[0]
    async with EtcdClient([f"http://{address}/", address], call_seconds=5.0) as client:
        assert client.endpoints == (address,)
        assert await client.get(b"/k") is None
        with pytest.raises(ValueError, match="at least one endpoint"):
            client.set_endpoints([])
        with pytest.raises(AddressError):
            client.set_endpoints(["no-port"])
        assert client.endpoints == (address,)


async def test_reads_and_writes_pass_over_an_endpoint_that_refuses(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    async with EtcdClient([dead_endpoint(loopback_net), *etcd.endpoints], call_seconds=5.0) as client:
        assert (await client.txn([], [kv.put(b"/k", b"1")])).succeeded
        attempts = client.counts.attempts
        for _ in range(20):
            assert await client.get(b"/k") is not None
        assert client.counts.attempts - attempts == 20, "the dead endpoint is asked first no more"


async def test_a_silent_endpoint_costs_one_attempt_of_one_read(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient([silent, *etcd.endpoints], call_seconds=2.0) as client:
            await client.get(b"/k")
            assert client.counts.attempts == 2
            await client.get(b"/k")
            assert client.counts.attempts == 3


async def test_a_write_to_a_silent_endpoint_is_not_repeated(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient([silent, *etcd.endpoints], call_seconds=1.0) as client:
            with pytest.raises(OutcomeUnknown, match=silent):
                await client.txn([], [kv.put(b"/k", b"1")])
            assert client.counts.attempts == 1
            assert await client.get(b"/k") is None
            assert (await client.txn([], [kv.put(b"/k", b"1")])).succeeded


async def test_an_outage_ends_at_the_deadline(loopback_net: LoopbackNet) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient([silent, dead_endpoint(loopback_net)], call_seconds=0.3) as client:
            started = client.clock()
            with pytest.raises(StoreUnavailable, match=r"no answer in 0\.3 s"):
                await client.get(b"/k")
            # Generous, for a busy machine; what bounds the call is that attempts share one deadline.
            assert client.clock() - started < 10.0
            assert client.counts.failed_calls == 1


async def test_an_endpoint_that_comes_back_is_let_out_of_quarantine(
    etcd_cluster: EtcdCluster,
) -> None:
    first = etcd_cluster.follower()
    others = [member.endpoint for member in etcd_cluster.members if member is not first]
    async with EtcdClient([first.endpoint, *others], call_seconds=2.0) as client:
        first.running.suspend()
        await client.get(b"/k")
        assert client.pool.get(first.endpoint).quarantined
        first.running.resume()
        await eventually(lambda: not client.pool.get(first.endpoint).quarantined, "out of quarantine")


async def test_endpoints_are_replaced_at_run_time(etcd: EtcdCluster, loopback_net: LoopbackNet) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient([silent], call_seconds=0.3) as client:
            waiting = asyncio.create_task(client.get(b"/k", seconds=5.0))
            await eventually(lambda: client.counts.attempts == 1, "a call is under way")
            client.set_endpoints(etcd.endpoints)
            assert await client.get(b"/k") is None
            assert client.endpoints == tuple(etcd.endpoints)
            assert await waiting is None, "the call under way goes on at the new endpoint"


async def test_a_call_passes_over_endpoints_that_were_taken_out_meanwhile(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    with black_hole(loopback_net.host(1)) as silent, black_hole(loopback_net.host(2)) as other:
        async with EtcdClient([silent, other], call_seconds=5.0) as client:
            waiting = asyncio.create_task(client.get(b"/k"))
            await eventually(lambda: client.counts.attempts == 1, "a call is under way")
            client.set_endpoints(etcd.endpoints)
            assert await waiting is None


async def test_a_call_under_way_ends_with_the_client(loopback_net: LoopbackNet) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        client = EtcdClient([silent], call_seconds=0.5)
        waiting = asyncio.create_task(client.get(b"/k"))
        await eventually(lambda: client.counts.attempts == 1, "a call is under way")
        await client.close()
        with pytest.raises(StoreUnavailable):
            await waiting


async def test_closing_a_channel_under_a_call_is_an_error_of_the_call(
    etcd: EtcdCluster, loopback_net: LoopbackNet
) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient([silent, *etcd.endpoints], call_seconds=2.0) as client:
            waiting = asyncio.create_task(client.get(b"/k", seconds=8.0))
            await eventually(lambda: client.counts.attempts == 1, "a call is under way")
            await client.pool.get(silent).renew()
            assert await waiting is None


async def test_cancelling_a_call_cancels_it(loopback_net: LoopbackNet) -> None:
    with black_hole(loopback_net.host(1)) as silent:
        async with EtcdClient([silent]) as client:
            waiting = asyncio.create_task(client.get(b"/k", seconds=8.0))
            await eventually(lambda: client.counts.attempts == 1, "a call is under way")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def test_refusals_are_not_retried(etcd: EtcdCluster) -> None:
    async with EtcdClient(etcd.endpoints, call_seconds=5.0) as client:
        with pytest.raises(RequestRefused, match="duplicate key") as caught:
            await client.txn([], [kv.put(b"/k", b"1"), kv.put(b"/k", b"2")])
        assert caught.value.refusal is Refusal.OTHER
        assert client.counts.attempts == 1
        revision = (await client.txn([], [kv.put(b"/k", b"1")])).header.revision
        request = pb.RangeRequest(key=b"/k", revision=revision + 1000)
        with pytest.raises(RequestRefused) as caught:
            await client.read(lambda e: e.kv.Range, request)
        assert caught.value.refusal is Refusal.FUTURE_REVISION


@asynccontextmanager
async def denying(host: str) -> AsyncIterator[str]:
    """The address of a member that refuses every read, as one that knows a new user too late does."""

    async def deny(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Range": grpc.unary_unary_rpc_method_handler(deny)
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("etcdserverpb.KV", handlers)])
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(None)


async def test_a_denial_counts_when_it_is_repeated(etcd: EtcdCluster, loopback_net: LoopbackNet) -> None:
    async with AsyncExitStack() as stack:
        deniers = [await stack.enter_async_context(denying(loopback_net.host(4))) for _ in range(5)]
        async with EtcdClient([deniers[0], *etcd.endpoints], call_seconds=5.0) as client:
            assert await client.get(b"/nothing") is None
            assert client.counts.attempts >= 2
        async with EtcdClient(deniers, call_seconds=30.0) as client:
            began = time.monotonic()
            with pytest.raises(RequestRefused) as caught:
                await client.get(b"/nothing")
            assert caught.value.refusal is Refusal.PERMISSION_DENIED
            assert client.counts.attempts == 5
            assert time.monotonic() - began > 0.15  # also with so many members there is a pause after each


@pytest.mark.parametrize("members", [1, 3])
async def test_there_is_one_pause_after_each_denial(loopback_net: LoopbackNet, members: int) -> None:
    """A lasting refusal costs four pauses, however many members there are to say it."""
    drawn = itertools.count()

    def uniform() -> float:
        next(drawn)
        return 0.5

    async with AsyncExitStack() as stack:
        deniers = [await stack.enter_async_context(denying(loopback_net.host(4))) for _ in range(members)]
        async with EtcdClient(deniers, call_seconds=30.0, uniform=uniform) as client:
            with pytest.raises(RequestRefused):
                await client.get(b"/nothing")
            assert client.counts.attempts == 5
    assert next(drawn) == 4


async def test_something_that_is_no_etcd_is_passed_over(etcd: EtcdCluster, loopback_net: LoopbackNet) -> None:
    async def garbage(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        writer.close()

    host = loopback_net.host(3)
    server = await asyncio.start_server(garbage, host, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with EtcdClient([f"{host}:{port}", *etcd.endpoints], call_seconds=5.0) as client:
            assert await client.get(b"/k") is None
