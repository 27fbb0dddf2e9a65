"""The fleet over real gRPC: hosts that lead or stand by over a real etcd, and agents that a test drives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
from akv.v1 import agent_pb2 as pb
from akv.v1 import agent_pb2_grpc, fleet_pb2_grpc

from controlplane.base import tls
from controlplane.base.credentials import CredentialFiles
from controlplane.base.pki import Role
from controlplane.fleet.fleet import Fleet
from controlplane.fleet.forwarding import insecure_channel
from controlplane.fleet.liveness import Limits
from controlplane.fleet.term import Term
from controlplane.store.client import EtcdClient
from controlplane.store.election import Standing, campaign
from controlplane.store.lease import Lease
from tests.support.etcd import EtcdCluster
from tests.support.pki import TestAuthority, run_authority
from tests.support.waiting import eventually

SECONDS = 60.0
MAX_MESSAGE = 4 << 20
FEATURES = ("logs", "logs-follow", "fabric-scan", "fabric-test", "remove-weights", "drain")


class FleetHost:
    """One host that serves the fleet; the test says how it stands in the election.

    It has a certificate of `authority`, which is the run's own where none is named, and so has whoever calls
    it; a `plaintext` one serves without TLS, and an `insecure` one also believes what such callers say.
    """

    def __init__(
        self,
        name: str,
        authority: TestAuthority | None = None,
        *,
        plaintext: bool = False,
        insecure: bool = False,
        **fleet: Any,
    ) -> None:
        self.name = name
        self.authority = authority or run_authority()
        self._tls = not (plaintext or insecure)
        self.standing = Standing()
        self.fleet = Fleet(
            name,
            require_identity=not insecure,
            channel=lambda target: self._channel_to(target, Role.HOST, name),
            look_seconds=0.02,
            **fleet,
        )
        self.api = ""
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE)])
        self._task: asyncio.Task[None] | None = None
        self._client: EtcdClient | None = None

    @property
    def term(self) -> Term:
        term = self.fleet.term()
        assert term is not None, f"{self.name} does not lead"
        return term

    async def start(self, address: str = "127.0.0.1") -> None:
        for register in self.fleet.registrations:
            register(self._server)
        if self._tls:
            files = self.authority.once(Role.HOST, self.name)
            port = self._server.add_secure_port(f"{address}:0", tls.server_credentials(files))
        else:
            port = self._server.add_insecure_port(f"{address}:0")
        self.api = f"{address}:{port}"
        await self._server.start()
        self._task = asyncio.create_task(self.fleet.run(lambda: self.standing))

    async def lead(self, endpoint: str) -> None:
        """Win the election in this etcd, and open the fleet."""
        self._client = EtcdClient([endpoint], call_seconds=5.0)
        lease = await Lease.grant(self._client, 60)
        won = await campaign(self._client, lease, self.name)
        assert won is not None, "another host leads"
        self.standing = Standing(self._client, won, self.name, self.api)
        await eventually(lambda: self.fleet.term() is not None, f"{self.name} leads", SECONDS)

    def knows_leader(self) -> bool:
        return self.fleet._standing.leader_api != ""

    def follow(self, leader: FleetHost) -> None:
        """Stand by behind another host."""
        self.standing = Standing(None, None, leader.name, leader.api)

    async def resign(self, leader: FleetHost | None = None) -> None:
        """Give the leadership back, so that another can win it."""
        leadership = self.standing.leadership
        assert leadership is not None
        self.standing = Standing() if leader is None else Standing(None, None, leader.name, leader.api)
        await leadership.lease.close()
        await eventually(lambda: self.fleet._term is None, f"{self.name} stands by", SECONDS)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._server.stop(0.2)
        if self.standing.leadership is not None:
            await self.standing.leadership.lease.close()
        if self._client is not None:
            await self._client.close()

    def channel(self, role: Role, name: str) -> grpc.aio.Channel:
        """A connection to it, with a certificate of that role and name."""
        return self._channel_to(self.api, role, name)

    def agent(self, node: str = "gpu-1", **fields: Any) -> SimAgent:
        """An agent of that node, with its certificate."""
        return SimAgent(node, self.channel(Role.AGENT, node), **fields)

    @contextlib.asynccontextmanager
    async def operator(self, role: Role = Role.ADMIN, name: str = "olga") -> AsyncIterator[Any]:
        """A stub of FleetService at this host."""
        async with self.channel(role, name) as channel:
            yield fleet_pb2_grpc.FleetServiceStub(channel)

    def _channel_to(self, target: str, role: Role, name: str) -> grpc.aio.Channel:
        if not self._tls:
            return insecure_channel(target)
        return secure_channel(target, self.authority.once(role, name))


@contextlib.asynccontextmanager
async def leading(etcd: EtcdCluster, **host: Any) -> AsyncIterator[FleetHost]:
    """A host that leads the fleet over this etcd; `host` are FleetHost's arguments."""
    made = FleetHost("host-1", **host)
    await made.start()
    await made.lead(etcd.endpoints[0])
    try:
        yield made
    finally:
        await made.stop()


def secure_channel(target: str, files: CredentialFiles) -> grpc.aio.Channel:
    """A channel with these credentials."""
    options = [*tls.TLS_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(target, tls.channel_credentials(files.load()), options=options)


@dataclass
class SimAgent:
    """An agent whose every message the test decides; what the leader says is kept in `heard`."""

    node_id: str
    channel: grpc.aio.Channel
    incarnation: int = 1
    features: tuple[str, ...] = FEATURES
    sequence: int = 0
    heard: list[pb.LeaderMessage] = field(default_factory=list)
    on_message: Callable[[pb.LeaderMessage], Any] | None = None
    gpus: int = 0
    call: Any = None
    _reader: asyncio.Task[None] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _speaking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def description(self, **fields: Any) -> pb.Register:
        """The node as it registers."""
        gpus = [
            pb.Gpu(index=n, uuid=f"{self.node_id}-gpu{n}", model="H100", memory_total_bytes=80 << 30)
            for n in range(self.gpus)
        ]
        base: dict[str, Any] = {
            "node_id": self.node_id,
            "incarnation": self.incarnation,
            "agent_version": "0.1.0",
            "features": self.features,
            "gpus": gpus,
            "memory_total_bytes": 1 << 40,
            "engines": pb.EnginesReport(versions={"vllm": "1"}),
            "address": "127.0.0.1",
        }
        return pb.Register(**{**base, **fields})

    async def connect(self, *, read: bool = True, **fields: Any) -> SimAgent:
        """Open the stream and register."""
        self.open(read=read)
        await self.say(register=self.description(**fields))
        return self

    def open(self, *, read: bool = True) -> None:
        """Open the stream and say nothing."""
        self.call = agent_pb2_grpc.AgentServiceStub(self.channel).Connect()
        self.ended = asyncio.Event()
        if read:
            self.listen()

    def listen(self) -> None:
        """Read what the leader says from now on."""
        self._reader = asyncio.create_task(self._read())

    async def say(self, *, sequence: int | None = None, **part: Any) -> None:
        """Send one message, with the next number unless another is given."""
        async with self._speaking:  # a stream takes one message at a time, in the order of their numbers
            self.sequence = self.sequence + 1 if sequence is None else sequence
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.call.write(pb.AgentMessage(sequence=self.sequence, **part))

    async def hear(self, kind: str, count: int = 1) -> Any:
        """The `count`th message of a kind, once it came."""
        try:
            async with asyncio.timeout(SECONDS):
                while len(self.of_kind(kind)) < count and not self.ended.is_set():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {SECONDS} s: {kind} came") from None
        found = self.of_kind(kind)
        assert len(found) >= count, f"the stream ended without {kind}: {await self.status()}"
        return found[count - 1]

    def of_kind(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self.heard if m.WhichOneof("message") == kind]

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended."""
        async with asyncio.timeout(SECONDS):
            return await self.call.code(), await self.call.details()

    async def leader_hint(self) -> str:
        """Where the refusal says that the leader is."""
        return str(dict(await self.call.trailing_metadata()).get("akv-leader", ""))

    async def drop(self) -> None:
        """Lose the stream, as a node does whose network fails."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        if self.call is not None:
            self.call.cancel()

    async def close(self) -> None:
        await self.drop()
        await self.channel.close()

    async def _read(self) -> None:
        try:
            while True:
                message = await self.call.read()
                if not isinstance(message, pb.LeaderMessage):
                    return
                self.heard.append(message)
                self._news.set()
                if self.on_message is not None:
                    await self.on_message(message)
        except grpc.aio.AioRpcError:
            return
        finally:
            self.ended.set()
            self._news.set()


class RunningAgent(SimAgent):
    """An agent that does what it is told: its shards run in memory, and outlive its streams."""

    def __init__(self, node_id: str, channel: grpc.aio.Channel, **fields: Any) -> None:
        super().__init__(node_id, channel, **fields)
        self.shards: dict[str, pb.RunningShard] = {}
        self.starts: list[pb.StartShard] = []
        self.hold_starts = False
        self.on_message = self._obey

    async def connect(self, *, read: bool = True, **fields: Any) -> SimAgent:
        return await super().connect(read=read, running_shards=list(self.shards.values()), **fields)

    async def _obey(self, message: pb.LeaderMessage) -> None:
        match message.WhichOneof("message"):
            case "start_shard":
                await self._start(message.start_shard)
            case "stop_shard":
                await self._stop(message.stop_shard)
            case "drain_shard":
                await self._stop(message.drain_shard)

    async def _start(self, start: pb.StartShard) -> None:
        self.starts.append(start)
        self.shards[start.shard_id] = pb.RunningShard(
            shard_id=start.shard_id,
            replica_id=start.replica_id,
            generation=start.generation,
            state=pb.SHARD_STATE_STARTING,
            gpu_uuids=start.gpu_uuids,
        )
        await self.say(command_answer=pb.CommandAnswer(request_id=start.request_id))
        if not self.hold_starts:
            await self.serve(start.shard_id)

    async def serve(self, shard_id: str) -> None:
        """A starting shard begins to serve."""
        shard = self.shards[shard_id]
        shard.state = pb.SHARD_STATE_RUNNING
        await self.tell(shard, pb.SHARD_STATE_RUNNING, port=8000)

    async def crash(self, shard_id: str) -> None:
        """A shard ends by itself."""
        shard = self.shards.pop(shard_id)
        await self.tell(
            shard, pb.SHARD_STATE_FAILED, error="exit code 3", exit_code=3, last_output=["Traceback", "boom"]
        )

    async def tell(self, shard: pb.RunningShard, state: pb.ShardState.ValueType, **fields: Any) -> None:
        await self.say(
            shard_event=pb.ShardEvent(
                shard_id=shard.shard_id, generation=shard.generation, state=state, **fields
            )
        )

    async def _stop(self, stop: pb.StopShard | pb.DrainShard) -> None:
        shard = self.shards.get(stop.shard_id)
        here = shard is not None and stop.generation in {0, shard.generation}
        await self.say(command_answer=pb.CommandAnswer(request_id=stop.request_id, gone=not here))
        if here:
            await self.tell(self.shards.pop(stop.shard_id), pb.SHARD_STATE_STOPPED)


FAST = Limits(heartbeat=0.5, suspect=2.0, lost=6.0, grace=4.0)
