"""Where a replica can go: nodes and GPUs for one profile. Pure and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.model.catalogue import Assignment, ModelSpec, Place, Profile

# An engine that is no engine: the arguments are the command. Every node can run it.
PROCESS = "process"


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU; `usable` means healthy and not in use by anything that is not ours."""

    uuid: str
    model: str = ""
    memory_bytes: int = 0
    usable: bool = True


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as placement sees it.

    `ready`: heard lately and connected. `lost`: silent for so long that nothing there counts. `strays` are
    shards that run there and that nobody wants, `held` their GPUs.
    """

    node_id: str
    ready: bool = True
    lost: bool = False
    draining: bool = False
    address: str = ""
    gpus: tuple[GpuView, ...] = ()
    memory_bytes: int = 0
    engines: Mapping[str, str] = field(default_factory=dict)
    fabrics: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    strays: frozenset[str] = frozenset()
    can_drain: bool = True


class Room:
    """What is free on the nodes, with the assignments so far taken away."""

    def __init__(self, nodes: Iterable[NodeView], assignments: Iterable[Assignment]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._taken: dict[str, set[str]] = {name: set(node.held) for name, node in self._nodes.items()}
        self._memory = {name: node.memory_bytes for name, node in self._nodes.items()}
        self._of_model: Counter[tuple[str, str]] = Counter()
        self._ports: set[tuple[str, int]] = set()
        for assignment in assignments:
            self.take(assignment)

    def take(self, assignment: Assignment) -> None:
        """Take away what the assignment uses."""
        for place in assignment.places:
            if place.node_id in self._nodes:
                self._taken[place.node_id].update(place.gpu_uuids)
                self._memory[place.node_id] -= assignment.profile.memory_bytes
                if assignment.profile.port:
                    self._ports.add((place.node_id, assignment.profile.port))
            self._of_model[place.node_id, assignment.model] += 1

    def place(self, model: ModelSpec, replica_id: str, avoid: Collection[str] = ()) -> Assignment | str:
        """Places for a replica, none of them on a node of `avoid`; or why there are none."""
        reasons = []
        for profile in model.profiles:
            chosen = self._choose(model.name, profile, avoid)
            if isinstance(chosen, str):
                reasons.append(f"profile {profile.name}: {chosen}")
                continue
            places = tuple(
                Place(shard_id(replica_id, rank), node.node_id, rank, self._free(node, profile))
                for rank, node in enumerate(chosen)
            )
            return Assignment(replica_id, model.name, profile, places)
        return "; ".join(reasons)

    def _choose(self, model: str, profile: Profile, avoid: Collection[str]) -> Sequence[NodeView] | str:
        refusals: Counter[str] = Counter()
        fitting = []
        for node in self._nodes.values():
            why = "where it kept failing" if node.node_id in avoid else self._refusal(node, profile)
            if why:
                refusals[why] += 1
            else:
                fitting.append(node)
        fitting.sort(key=lambda node: self._order(node, model))
        for group in _groups(fitting, profile):
            if len(group) >= profile.nodes:
                return group[: profile.nodes]
        return _explain(profile, len(fitting), refusals)

    def _order(self, node: NodeView, model: str) -> tuple[int, int, int, str]:
        """Spread a model over nodes, fill nodes that are in use first, then those with more memory left."""
        free = len(node.gpus) - len(self._taken[node.node_id])
        return self._of_model[node.node_id, model], free, -self._memory[node.node_id], node.node_id

    def _refusal(self, node: NodeView, profile: Profile) -> str:
        """Why the node can't take a shard, empty when it can."""
        free = self._memory[node.node_id]
        reasons = {
            "draining": node.draining,
            "not ready": not node.ready,
            f"without engine {profile.engine} {profile.engine_version}".rstrip(): not _has_engine(
                node, profile
            ),
            f"not on fabric {profile.fabric}": bool(profile.fabric) and profile.fabric not in node.fabrics,
            f"with port {profile.port} taken": (node.node_id, profile.port) in self._ports,
            "with too little free memory": 0 < profile.memory_bytes > free,
            "with too few free GPUs that fit": len(self._free(node, profile)) < profile.gpus,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _free(self, node: NodeView, profile: Profile) -> tuple[str, ...]:
        """The first GPUs of the node that are free and fit, at most as many as are wanted."""
        taken = self._taken[node.node_id]
        fitting = (
            gpu.uuid
            for gpu in node.gpus
            if gpu.usable
            and gpu.uuid not in taken
            and profile.gpu_model in gpu.model
            and gpu.memory_bytes >= profile.gpu_memory_bytes
        )
        return tuple(uuid for _, uuid in zip(range(profile.gpus), fitting, strict=False))


def _has_engine(node: NodeView, profile: Profile) -> bool:
    if profile.engine == PROCESS:
        return True
    version = node.engines.get(profile.engine)
    return version is not None and profile.engine_version in {"", version}


def shard_id(replica_id: str, rank: int) -> str:
    """`MODEL-REPLICA-RANK`."""
    return f"{replica_id.replace('/', '-')}-{rank}"


def _groups(fitting: Sequence[NodeView], profile: Profile) -> Iterable[Sequence[NodeView]]:
    """The sets of nodes that one replica may span: one fabric each when there are several nodes."""
    if profile.nodes == 1 or profile.fabric:
        return [fitting]
    fabrics = sorted({fabric for node in fitting for fabric in node.fabrics})
    return [[node for node in fitting if fabric in node.fabrics] for fabric in fabrics]


def _explain(profile: Profile, fitting: int, refusals: Counter[str]) -> str:
    counted = [f"{count} {why}" for why, count in sorted(refusals.items())]
    if fitting:
        together = "" if profile.nodes == 1 or profile.fabric else " on one fabric"
        counted.insert(0, f"{fitting} that fit where {profile.nodes}{together} are needed")
    return "nodes: " + (", ".join(counted) or "none is known")
