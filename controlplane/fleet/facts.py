"""What is known of a node: its last Register, and the heartbeats folded into it.

Pure: `from_register` and `fold` take messages and times and give new facts; no message is changed once it
is part of one. A heartbeat changes only what it carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from akv.v1 import agent_pb2 as pb

from controlplane.fleet.rates import PortId, PortRate, port_id, port_rates

# What an agent can install that does not say.
DEFAULT_INSTALLABLE = ("llamacpp",)
MAX_PROBLEMS = 64
WARNED_STATES = frozenset({"failed", "unsupported"})


@dataclass(frozen=True, slots=True)
class FactChange:
    """Something about a node that an operator wants to hear of."""

    kind: str
    subject: str
    before: str
    after: str
    warn: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. `ports_read` is the monotonic second of the last reading of its ports."""

    node_id: str
    register: pb.Register
    gpus: tuple[pb.Gpu, ...]
    problems: tuple[pb.Problem, ...]
    memory_total: int
    storage: tuple[pb.Storage, ...]
    weights: tuple[pb.Weights, ...]
    engines: Mapping[str, str]
    provision: tuple[pb.EngineInstall, ...]
    ports: tuple[pb.IbPort, ...]
    ports_read: float
    fabrics: tuple[pb.FabricAttachment, ...]
    imex: pb.Imex
    load: pb.NodeLoad | None = None
    rates: Mapping[PortId, PortRate] = field(default_factory=dict)

    @property
    def installable(self) -> tuple[str, ...]:
        """The engines that the node can be asked to install."""
        return tuple(self.register.installable_engines) or DEFAULT_INSTALLABLE

    @property
    def fabric_names(self) -> tuple[str, ...]:
        """The fabrics that it is on, sorted."""
        return tuple(sorted({attachment.fabric for attachment in self.fabrics}))

    @property
    def nvlink_domain(self) -> str:
        """`CLUSTER/CLIQUE` that all its GPUs share, "mixed" when they differ, empty for none."""
        domains = {_domain(gpu.fabric) for gpu in self.gpus}
        return domains.pop() if len(domains) == 1 else "mixed" if domains else ""

    @property
    def sick_gpus(self) -> frozenset[int]:
        """Indexes of the GPUs that are kept out of placement.

        A problem that names no GPU keeps the node's first one out: which of them is affected is not known,
        and a problem unheard would be worse than a GPU unused.
        """
        sick = {gpu.index for gpu in self.gpus if gpu.problems}
        for problem in self.problems:
            if problem.HasField("gpu_index"):
                sick.add(problem.gpu_index)
            elif self.gpus:
                sick.add(self.gpus[0].index)
        return frozenset(sick)


Folded = tuple[NodeFacts, tuple[FactChange, ...]]


def from_register(register: pb.Register, now: float) -> NodeFacts:
    """Facts as the Register gives them; `now` is monotonic."""
    return NodeFacts(
        node_id=register.node_id,
        register=register,
        gpus=tuple(register.gpus),
        problems=tuple(register.problems)[:MAX_PROBLEMS],
        memory_total=register.memory_total_bytes,
        storage=tuple(register.storage.file_systems),
        weights=tuple(register.weights.weights),
        engines=dict(register.engines.versions),
        provision=tuple(register.provision.engines),
        ports=tuple(register.ib_ports.ports),
        ports_read=now,
        fabrics=tuple(register.fabrics.fabrics),
        imex=register.imex,
    )


def fold(facts: NodeFacts, beat: pb.Heartbeat, now: float) -> Folded:
    """The facts after a heartbeat, and what changed by it."""
    changes: list[FactChange] = []
    for part, apply in _PARTS.items():
        if beat.HasField(part):  # type: ignore[arg-type]
            facts, news = apply(facts, beat, now)
            changes.extend(news)
    if beat.new_problems:
        facts, news = _problems(facts, beat.new_problems)
        changes.extend(news)
    return facts, tuple(changes)


def _problems(facts: NodeFacts, reported: Iterable[pb.Problem]) -> Folded:
    known = {_problem_key(problem) for problem in facts.problems}
    fresh: list[pb.Problem] = []
    for problem in reported:
        if _problem_key(problem) not in known and len(facts.problems) + len(fresh) < MAX_PROBLEMS:
            known.add(_problem_key(problem))
            fresh.append(problem)
    news = tuple(
        FactChange(
            "problem", f"gpu {p.gpu_index}" if p.HasField("gpu_index") else "node", "", p.text, warn=True
        )
        for p in fresh
    )
    return replace(facts, problems=(*facts.problems, *fresh)), news


def _problem_key(problem: pb.Problem) -> tuple[str, int]:
    return problem.text, problem.gpu_index if problem.HasField("gpu_index") else -1


def _gpu_memory(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    used = {gpu.index: gpu.used_bytes for gpu in beat.gpu_memory.gpus}
    gpus = tuple(_with_memory(gpu, used) for gpu in facts.gpus)
    changed = any(after is not before for after, before in zip(gpus, facts.gpus, strict=True))
    return (replace(facts, gpus=gpus) if changed else facts), ()


def _with_memory(gpu: pb.Gpu, used: Mapping[int, int]) -> pb.Gpu:
    if used.get(gpu.index, gpu.memory_used_bytes) == gpu.memory_used_bytes:
        return gpu
    changed = pb.Gpu()
    changed.CopyFrom(gpu)
    changed.memory_used_bytes = used[gpu.index]
    return changed


def _storage(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    return replace(facts, storage=tuple(beat.storage.file_systems)), ()


def _weights(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    return replace(facts, weights=tuple(beat.weights.weights)), ()


def _memory(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    total = beat.memory_total_bytes
    if total in (0, facts.memory_total):  # nobody has no memory: a reading that failed
        return facts, ()
    news = FactChange("memory", "", str(facts.memory_total), str(total))
    return replace(facts, memory_total=total), (news,)


def _engines(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    versions = dict(beat.engines.versions)
    if versions == facts.engines:
        return facts, ()
    news = FactChange("engines", "", _versions(facts.engines), _versions(versions))
    return replace(facts, engines=versions), (news,)


def _versions(engines: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(engines.items()))


def _provision(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    """A change of an installation's state is news; how far a download is, is not."""
    before = {install.engine: install.state for install in facts.provision}
    news = tuple(
        FactChange(
            "provision",
            f"{install.engine} {install.version}".strip(),
            before.get(install.engine, ""),
            f"{install.state}: {install.detail}" if install.state in WARNED_STATES else install.state,
            warn=install.state in WARNED_STATES,
        )
        for install in beat.provision.engines
        if before.get(install.engine) != install.state
    )
    return replace(facts, provision=tuple(beat.provision.engines)), news


def _load(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    return replace(facts, load=beat.load), ()


def _ports(facts: NodeFacts, beat: pb.Heartbeat, now: float) -> Folded:
    ports = tuple(beat.ib_ports.ports)
    rates = port_rates(facts.ports, ports, now - facts.ports_read)
    news = _master_changes(facts.ports, ports)
    return replace(facts, ports=ports, ports_read=now, rates=rates), news


def _master_changes(before: Sequence[pb.IbPort], now: Sequence[pb.IbPort]) -> tuple[FactChange, ...]:
    """A port that sees another master than before: a failover, or the port moved to another fabric."""
    masters = {port_id(port): port.sm_guid for port in before}
    changes = []
    for port in now:
        old = masters.get(port_id(port), "")
        if old and port.sm_guid and old != port.sm_guid:
            changes.append(
                FactChange("subnet-manager", f"{port.hca}/{port.port}", old, port.sm_guid, warn=True)
            )
    return tuple(changes)


def _gpu_fabric(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    said = {fabric.index: fabric for fabric in beat.gpu_fabric.gpus}
    after = replace(facts, gpus=tuple(_with_fabric(gpu, said.get(gpu.index)) for gpu in facts.gpus))
    if after.nvlink_domain == facts.nvlink_domain:
        return after, ()
    news = FactChange("nvlink-domain", "", facts.nvlink_domain, after.nvlink_domain, warn=True)
    return after, (news,)


def _with_fabric(gpu: pb.Gpu, fabric: pb.GpuFabric | None) -> pb.Gpu:
    if fabric is None:
        return gpu
    changed = pb.Gpu()
    changed.CopyFrom(gpu)
    changed.fabric.CopyFrom(fabric)
    return changed


def _domain(fabric: pb.GpuFabric) -> str:
    return f"{fabric.cluster_uuid}/{fabric.clique_id}" if fabric.cluster_uuid else ""


def _fabrics(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    after = replace(facts, fabrics=tuple(beat.fabrics.fabrics))
    if after.fabric_names == facts.fabric_names:
        return after, ()
    before, now = ", ".join(facts.fabric_names), ", ".join(after.fabric_names)
    return after, (FactChange("fabrics", "", before, now, warn=True),)


def _imex(facts: NodeFacts, beat: pb.Heartbeat, _now: float) -> Folded:
    news: tuple[FactChange, ...] = ()
    if beat.imex.state != facts.imex.state:
        news = (FactChange("imex", "", facts.imex.state, beat.imex.state),)
    return replace(facts, imex=beat.imex), news


_PARTS = {
    "gpu_memory": _gpu_memory,
    "storage": _storage,
    "weights": _weights,
    "memory_total_bytes": _memory,
    "engines": _engines,
    "provision": _provision,
    "load": _load,
    "ib_ports": _ports,
    "gpu_fabric": _gpu_fabric,
    "imex": _imex,
    "fabrics": _fabrics,
}
