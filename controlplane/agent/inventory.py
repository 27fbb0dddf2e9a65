"""What this node is, put together from its parts, for the Register and the heartbeats."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.commands import FEATURES
from controlplane.agent.discovery.disks import read_storage
from controlplane.agent.discovery.gpus import GpuReader, read_imex
from controlplane.agent.discovery.host import memory_total, operating_system, read_cpu
from controlplane.agent.discovery.infiniband import fabrics_of, read_ports
from controlplane.agent.discovery.subnet import add_subnet_manager
from controlplane.agent.discovery.verbs import adapter_problems, load_pyverbs
from controlplane.agent.sampler import Part
from controlplane.agent.settings import AgentConfig
from controlplane.agent.shards.process import boot_id
from controlplane.agent.weights.cache import WeightCache
from controlplane.agent.weights.roots import read_weights
from controlplane.base.version import DISTRIBUTION, program_version

_SM_FIELDS = ("sm_guid", "sm_lid", "sm_priority", "sm_state", "sm_error")
SUBNET_SECONDS, SLOW_SECONDS, STORAGE_SECONDS = 60.0, 60.0, 15.0


class Inventory:
    """The node's facts, kept in a Register; its parts are read by a sampler and applied here."""

    def __init__(self, config: AgentConfig, incarnation: int, weights: WeightCache, beat: float) -> None:
        self._config = config
        self._weights = weights
        self._beat = beat
        self._sys, self._proc = Path(config.sys_root), Path(config.proc_root)
        self._managers: dict[tuple[str, int], agent_pb2.IbPort] = {}
        self._troubles: dict[str, str] = {}
        self._lasting: list[str] = []
        self._gpus = GpuReader(self._sys, self._proc)
        self.facts = agent_pb2.Register(
            node_id=config.node_id,
            incarnation=incarnation,
            agent_version=program_version(DISTRIBUTION).split()[-1],
            features=FEATURES,
            hostname=platform.node(),
            boot_id=boot_id(),
            operating_system=operating_system(),
            kernel=platform.release(),
            address=config.address,
            labels=config.labels,
            installable_engines=sorted(config.engine_kinds()),
        )

    @property
    def has_cuda(self) -> bool:
        """Whether NVIDIA's driver shows a GPU."""
        return any(gpu.driver_version for gpu in self.facts.gpus)

    def parts(self) -> list[Part]:
        """What the sampler is to read."""
        config, verbs = self._config, load_pyverbs()
        paths = [Path(config.state_dir), Path(config.engines_dir)]
        paths += [Path(root.path) for root in config.weight_roots]
        return [
            Part("gpus", self._gpus.read, self._take_gpus, self._beat),
            Part("adapters", lambda: read_ports(self._sys), self._take_ports, self._beat),
            Part("subnet managers", self._ask_managers, self._take_managers, SUBNET_SECONDS),
            Part("verbs", lambda: adapter_problems(verbs, self._hcas()), self._take_verbs, SLOW_SECONDS),
            Part(
                "processors", lambda: read_cpu(self._sys, self._proc), self.facts.cpu.CopyFrom, SLOW_SECONDS
            ),
            Part("memory", lambda: memory_total(self._proc), self._take_memory, STORAGE_SECONDS),
            Part("disks", lambda: read_storage(paths, self._proc), self._take_storage, STORAGE_SECONDS),
            Part("weights", lambda: read_weights(self._weights.roots()), self._take_weights, SLOW_SECONDS),
            Part("imex", lambda: read_imex(self._proc), self.facts.imex.CopyFrom, SLOW_SECONDS),
        ]

    def trouble(self, part: str, text: str) -> None:
        """What is wrong with a part; empty when nothing is."""
        self._troubles[part] = text
        self._put_problems()

    def add_lasting(self, texts: Iterable[str]) -> None:
        """Problems that stay until the agent is started anew."""
        self._lasting += texts
        self._put_problems()

    def take_engines(self, versions: dict[str, str], states: Iterable[agent_pb2.EngineInstall]) -> None:
        """Installed engines, and how far the others are."""
        self.facts.engines.CopyFrom(agent_pb2.EnginesReport(versions=versions))
        self.facts.provision.CopyFrom(agent_pb2.ProvisionReport(engines=states))

    def _put_problems(self) -> None:
        texts = [*self._lasting, *(text for text in self._troubles.values() if text)]
        del self.facts.problems[:]
        self.facts.problems.extend(agent_pb2.Problem(text=text) for text in dict.fromkeys(texts))

    def _hcas(self) -> list[str]:
        return [port.hca for port in self.facts.ib_ports.ports]

    def _take_gpus(self, gpus: list[agent_pb2.Gpu]) -> None:
        del self.facts.gpus[:]
        self.facts.gpus.extend(gpus)

    def _take_ports(self, ports: list[agent_pb2.IbPort]) -> None:
        for port in ports:
            known = self._managers.get((port.hca, port.port))
            for name in _SM_FIELDS if known is not None and port.state == "ACTIVE" else ():
                setattr(port, name, getattr(known, name))
        self.facts.ib_ports.CopyFrom(agent_pb2.IbPortsReport(ports=ports))
        fabrics = fabrics_of(ports, self._config.fabrics)
        self.facts.fabrics.CopyFrom(agent_pb2.FabricsReport(fabrics=fabrics))

    def _ask_managers(self) -> list[agent_pb2.IbPort]:
        ports = read_ports(self._sys)
        for port in ports:
            add_subnet_manager(port)
        return ports

    def _take_managers(self, ports: list[agent_pb2.IbPort]) -> None:
        self._managers = {(port.hca, port.port): port for port in ports}

    def _take_verbs(self, problems: list[str]) -> None:
        self.trouble("verbs", "; ".join(problems))

    def _take_memory(self, total: int) -> None:
        self.facts.memory_total_bytes = total

    def _take_storage(self, found: list[agent_pb2.Storage]) -> None:
        self.facts.storage.CopyFrom(agent_pb2.StorageReport(file_systems=found))

    def _take_weights(self, found: list[agent_pb2.Weights]) -> None:
        self.facts.weights.CopyFrom(agent_pb2.WeightsReport(weights=found))
