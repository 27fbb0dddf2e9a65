"""The agent of one node: its parts put together, and what the link asks of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.cgroups import Cgroups
from controlplane.agent.commands import Commands
from controlplane.agent.discovery.host import read_load
from controlplane.agent.engines.provisioner import Provisioner
from controlplane.agent.fabric.bandwidth import BandwidthMeans
from controlplane.agent.incarnation import AgentState
from controlplane.agent.inventory import Inventory
from controlplane.agent.link.hosts import Hosts
from controlplane.agent.link.link import Link
from controlplane.agent.loads import LoadMeter
from controlplane.agent.messages import event_of, running_shard
from controlplane.agent.report import after, heartbeat_of, must_register
from controlplane.agent.sampler import Sampler, in_thread
from controlplane.agent.settings import INSECURE_LOOPBACK, AgentConfig
from controlplane.agent.shards.orders import NodeMeans
from controlplane.agent.shards.shard import Shard
from controlplane.agent.shards.supervisor import Supervisor
from controlplane.agent.starts import Starts
from controlplane.agent.tasks import until_first
from controlplane.agent.waiting import WaitingStarts
from controlplane.agent.weights.cache import WeightCache
from controlplane.base.logging import get_logger

FIRST_LOOK_SECONDS = 10.0

log = get_logger("agent")


class Agent:
    """Everything that runs; `run` ends when `stop` is set. Shards go on."""

    def __init__(self, config: AgentConfig, state: AgentState) -> None:
        self._config = config
        beat = config.heartbeat_ms / 1000
        self._weights = WeightCache(
            [(Path(root.path), root.shared) for root in config.weight_roots],
            Path(config.proc_root),
            self._weights_changed,
        )
        self._inventory = Inventory(config, state.next_incarnation(), self._weights, beat)
        self._told = agent_pb2.Register()
        self._ports_moved = False
        self._supervisor = Supervisor(state.shards, self._shard_changed, config.patience())
        self._cgroups = Cgroups(Path(config.cgroup_root) if config.cgroup_root else None)
        self._provisioner = Provisioner(
            Path(config.engines_dir),
            config.engine_kinds(),
            self._engines_changed,
            self._engines_in_use,
            has_cuda=lambda: self._inventory.has_cuda,
            kept_versions=config.kept_engine_versions,
        )
        self._starts = Starts(
            self._supervisor,
            self._weights,
            WaitingStarts(state.waiting),
            self._means,
            self._cgroups.prepare,
            self._tell,
        )
        self._commands = Commands(
            self._supervisor,
            self._starts,
            self._provisioner,
            self._weights,
            self._tell,
            agent_log=state.log,
            tests=BandwidthMeans(config.address, Path(config.sys_root), config.perftest_install),
        )
        hosts = Hosts(config.hosts(), only_loopback=config.cluster_security == INSECURE_LOOPBACK)
        self._link = Link(hosts, config.credentials(), self, beat)
        self._sampler = Sampler(self._inventory.parts(), self._inventory.trouble)
        self._meter = LoadMeter()
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop`. Raises OSError when the shards' directory can't be used."""
        facts = self._inventory.facts
        log.info(
            "Agent starts", node=facts.node_id, incarnation=facts.incarnation, version=facts.agent_version
        )
        self._cgroups.set_up()
        in_thread(self._weights.clean)  # not waited for: shards are attended to whatever file system hangs
        await self._supervisor.adopt()
        await self._starts.resume()
        self._inventory.add_lasting(self._supervisor.problems)
        try:
            await until_first(self._sampler.run(), self._provisioner.run(), self._connect(), self.stop.wait())
        finally:
            await self._commands.close()
            await self._starts.close()
            await self._supervisor.close()

    def register(self) -> agent_pb2.Register:
        """Everything, for a stream's first message."""
        register = self._whole_register()
        self._told.CopyFrom(self._inventory.facts)
        return register

    def opened(self, ack: agent_pb2.Ack) -> None:
        """Tell each shard's state again: what changed without a stream, and ends not told for sure."""
        for shard in self._supervisor.shards:
            if not (shard.status.phase.ended and shard.told_for_sure):
                self._shard_changed(shard)
        self._starts.tell_again()

    def beat(self) -> agent_pb2.AgentMessage:
        """What changed since the last one, or all where that can't be told in a heartbeat."""
        now = self._inventory.facts
        if must_register(self._told, now):
            log.info("Registers anew, the node has changed")
            return agent_pb2.AgentMessage(register=self.register())
        load = read_load()
        load.shards.extend(self._meter.read(self._supervisor.running))
        heartbeat = heartbeat_of(self._told, now, load, ports_moved=self._ports_moved)
        self._ports_moved = self._told.ib_ports != now.ib_ports
        self._told = after(self._told, now, heartbeat)
        return agent_pb2.AgentMessage(heartbeat=heartbeat)

    def handle(self, message: agent_pb2.LeaderMessage) -> None:
        """Begin to do what the leader says."""
        self._commands.handle(message)

    def closed(self) -> None:
        """No one waits for measurements any more."""
        self._commands.forget()

    async def _connect(self) -> None:
        await self._sampler.first(FIRST_LOOK_SECONDS)
        await self._link.run()

    def _whole_register(self) -> agent_pb2.Register:
        register = agent_pb2.Register()
        register.CopyFrom(self._inventory.facts)
        now = time.time()
        register.running_shards.extend(running_shard(shard, now) for shard in self._supervisor.running)
        register.running_shards.extend(self._starts.running())
        return register

    def _shard_changed(self, shard: Shard) -> None:
        ended = shard.status.phase.ended
        if ended:
            self._cgroups.release(shard.spec)
        sent = partial(shard.mark_told) if ended else None
        self._link.send(event_of(shard.spec, shard.status), sent)

    def _tell(self, message: agent_pb2.AgentMessage) -> bool:
        """Send, if a stream is open; without one no one waits for most of it."""
        return self._link.send(message)

    def _weights_changed(self) -> None:
        self._sampler.soon("weights")

    def _engines_changed(self) -> None:
        self._inventory.take_engines(self._provisioner.versions(), self._provisioner.states)

    def _engines_in_use(self) -> Iterable[tuple[str, str]]:
        specs = [shard.spec for shard in self._supervisor.running] + self._starts.waiting
        return [(spec.engine, spec.engine_version) for spec in specs]

    def _means(self) -> NodeMeans:
        config = self._config
        return NodeMeans(
            address=config.address,
            engines=self._provisioner.homes,
            gpu_uuids=frozenset(gpu.uuid for gpu in self._inventory.facts.gpus),
            gateway_socket=config.gateway_socket or "",
            log_bytes=config.shard_log_size,
            log_files=config.shard_log_files,
        )
