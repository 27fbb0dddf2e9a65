"""The fleet's messages for operators, made of what the leader knows; and models read from their messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from akv.v1 import agent_pb2, fleet_pb2

from controlplane.fleet.facts import NodeFacts
from controlplane.fleet.inventory import Node
from controlplane.fleet.life import MAX_OUTPUT_LINES, Phase, ShardStatus
from controlplane.fleet.liveness import NodeState
from controlplane.fleet.term import Term
from controlplane.fleet.views import is_usable
from controlplane.model.catalogue import Assignment, ModelSpec, Place, Profile

_NODE_STATES = {
    NodeState.READY: fleet_pb2.NODE_STATE_READY,
    NodeState.SUSPECT: fleet_pb2.NODE_STATE_SUSPECT,
    NodeState.LOST: fleet_pb2.NODE_STATE_LOST,
    NodeState.EXPECTED: fleet_pb2.NODE_STATE_EXPECTED,
}
_SHARD_STATES = {
    Phase.PENDING: agent_pb2.SHARD_STATE_UNSPECIFIED,
    Phase.UNKNOWN: agent_pb2.SHARD_STATE_UNSPECIFIED,
    Phase.STARTING: agent_pb2.SHARD_STATE_STARTING,
    Phase.RUNNING: agent_pb2.SHARD_STATE_RUNNING,
    Phase.DRAINING: agent_pb2.SHARD_STATE_DRAINING,
    Phase.ENDING: agent_pb2.SHARD_STATE_FAILED,
    Phase.STOPPED: agent_pb2.SHARD_STATE_STOPPED,
    Phase.FAILED: agent_pb2.SHARD_STATE_FAILED,
}
# A list of shards has to fit into one message, with the last output of each. A node's has more of it.
LISTED_LINES = 10
LISTED_CHARACTERS = 1 << 20
# Of a node in short.
SUMMARY_WORDS, SUMMARY_WORD, SUMMARY_PROBLEM = 16, 64, 300
DEFAULT_START_SECONDS, DEFAULT_DRAIN_SECONDS, DEFAULT_GRACE_SECONDS = 1800.0, 30.0, 10.0


Places = Mapping[str, Sequence[Place]]


def places_by_node(term: Term) -> Places:
    """Every place, by its node."""
    places: dict[str, list[Place]] = {}
    for assignment in term.ledger.records.assignments.values():
        for place in assignment.places:
            places.setdefault(place.node_id, []).append(place)
    return places


def node_summary(term: Term, node: Node, places: Places) -> fleet_pb2.NodeSummary:
    """A node in short."""
    there = places.get(node.node_id, [])
    taken = {uuid for place in there for uuid in place.gpu_uuids} | term.shards.held(node.node_id)
    summary = fleet_pb2.NodeSummary(
        node_id=node.node_id,
        state=_NODE_STATES[node.state],
        connected=term.connections.is_open(node.node_id),
        draining=node.draining,
        shards=len(there),
        heard_at=node.heard_at,
    )
    if node.facts is not None:
        facts = node.facts
        summary.agent_version = facts.register.agent_version[:SUMMARY_WORD]
        summary.gpus = len(facts.gpus)
        sick = facts.sick_gpus
        summary.gpus_free = sum(
            is_usable(gpu, sick, frozenset()) and gpu.uuid not in taken for gpu in facts.gpus
        )
        summary.gpus_unhealthy = len(sick)
        summary.memory_total_bytes = facts.memory_total
        summary.fabrics.extend(_short(facts.fabric_names, SUMMARY_WORD))
        summary.engines.update(
            {name[:SUMMARY_WORD]: facts.engines[name][:SUMMARY_WORD] for name in _short(facts.engines)}
        )
        summary.problems.extend(_short(_problems(facts), SUMMARY_PROBLEM))
    return summary


def _short(words: Iterable[str], characters: int | None = None) -> list[str]:
    """The first words, each as long as it may be: one node must not make the list of all too long to send."""
    return [word[:characters] for word in islice(words, SUMMARY_WORDS)]


def _problems(facts: NodeFacts) -> list[str]:
    of_node = [f"gpu {p.gpu_index}: {p.text}" if p.HasField("gpu_index") else p.text for p in facts.problems]
    return [*of_node, *(f"gpu {gpu.index}: {text}" for gpu in facts.gpus for text in gpu.problems)]


def node_details(term: Term, node: Node) -> fleet_pb2.GetNodeResponse:
    """All that is known of a node."""
    answer = fleet_pb2.GetNodeResponse(
        summary=node_summary(term, node, places_by_node(term)),
        incarnation=node.gate.incarnation,
        shards=shards(term, lines=MAX_OUTPUT_LINES, node=node.node_id),
        events=[
            fleet_pb2.NodeEvent(
                at=event.at,
                kind=event.change.kind,
                subject=event.change.subject,
                before=event.change.before,
                after=event.change.after,
            )
            for event in node.events
        ],
    )
    if node.facts is not None:
        answer.node.CopyFrom(_present(node.facts))
        if node.facts.load is not None:
            answer.load.CopyFrom(node.facts.load)
        for (hca, port), rate in sorted(node.facts.rates.items()):
            answer.rates.add(
                hca=hca,
                port=port,
                transmit_bytes_per_second=rate.transmit,
                receive_bytes_per_second=rate.receive,
            )
    return answer


def _present(facts: NodeFacts) -> agent_pb2.Register:
    """The Register that the node would send now, without its shards."""
    present = agent_pb2.Register()
    present.CopyFrom(facts.register)
    for part in ("gpus", "problems", "storage", "weights", "engines", "provision", "ib_ports", "fabrics"):
        present.ClearField(part)
    present.ClearField("running_shards")
    present.gpus.extend(facts.gpus)
    present.problems.extend(facts.problems)
    present.memory_total_bytes = facts.memory_total
    present.storage.file_systems.extend(facts.storage)
    present.weights.weights.extend(facts.weights)
    present.engines.versions.update(facts.engines)
    present.provision.engines.extend(facts.provision)
    present.ib_ports.ports.extend(facts.ports)
    present.fabrics.fabrics.extend(facts.fabrics)
    present.imex.CopyFrom(facts.imex)
    return present


def shards(term: Term, model: str = "", lines: int = LISTED_LINES, node: str = "") -> list[fleet_pb2.Shard]:
    """The shards of a model, on a node, or all, by replica, each with so many lines of last output."""
    found = [
        (assignment, place)
        for _, assignment in sorted(term.ledger.records.assignments.items())
        if model in {"", assignment.model}
        for place in assignment.places
        if node in {"", place.node_id}
    ]
    room = LISTED_CHARACTERS // max(1, len(found))
    return [_shard(term, assignment, place, lines, room) for assignment, place in found]


def newest(output: Sequence[str], lines: int, room: int) -> list[str]:
    """The last lines that have room together."""
    kept: list[str] = []
    for line in reversed(output[-lines:]):
        room -= len(line)
        if room < 0:
            break
        kept.append(line)
    return kept[::-1]


def _shard(term: Term, assignment: Assignment, place: Place, lines: int, room: int) -> fleet_pb2.Shard:
    status = term.shards.statuses[place.shard_id]
    now = term.clock()
    shard = fleet_pb2.Shard(
        shard_id=place.shard_id,
        replica_id=assignment.replica_id,
        model=assignment.model,
        profile=assignment.profile.name,
        node_id=place.node_id,
        state=_SHARD_STATES[status.phase],
        generation=place.generation,
        gpu_uuids=place.gpu_uuids,
        address=_address(term, place, status),
        reason=_reason(assignment, status, term.reconciler.setbacks.get(assignment.replica_id, ())),
        failures=status.failures,
        retry_in_seconds=max(0.0, status.retry_at - now) if status.phase is Phase.FAILED else 0.0,
        since=term.wall() - (now - status.since),
        last_output=newest(status.last_output, lines, room),
        exit_code=status.exit_code,
    )
    if status.progress is not None:
        shard.progress.CopyFrom(status.progress)
    return shard


def _address(term: Term, place: Place, status: ShardStatus) -> str:
    node = term.inventory.nodes.get(place.node_id)
    if status.phase not in {Phase.RUNNING, Phase.DRAINING} or not status.port or node is None:
        return ""
    host = node.facts.register.address if node.facts is not None else ""
    return f"[{host}]:{status.port}" if ":" in host else f"{host}:{status.port}"


def _reason(assignment: Assignment, status: ShardStatus, left: Collection[str]) -> str:
    words = {Phase.PENDING: "not started yet", Phase.UNKNOWN: "its node was not heard yet"}
    reason = status.reason or words.get(status.phase, "")
    leaving = f"leaves: {assignment.leaving}" if assignment.leaving else ""
    moved = f"moved here, it kept failing on {', '.join(sorted(left))}" if left and not leaving else ""
    return "; ".join(filter(None, (leaving, moved, reason)))


def model_message(spec: ModelSpec) -> fleet_pb2.Model:
    """A model as it is shown."""
    return fleet_pb2.Model(
        name=spec.name,
        replicas=spec.replicas,
        revision=spec.revision,
        profiles=[
            fleet_pb2.Profile(
                name=p.name,
                engine=p.engine,
                engine_version=p.engine_version,
                arguments=p.arguments,
                environment=p.environment,
                gpus=p.gpus,
                gpu_model=p.gpu_model,
                gpu_memory_bytes=p.gpu_memory_bytes,
                memory_bytes=p.memory_bytes,
                nodes=p.nodes,
                fabric=p.fabric,
                gateway=p.gateway,
                weights=p.weights,
                port=p.port,
                health_path=p.health_path,
                start_seconds=p.start_seconds,
                drain_seconds=p.drain_seconds,
                stop_grace_seconds=p.stop_grace_seconds,
                drain_path=p.drain_path,
                drain_signal=p.drain_signal,
            )
            for p in spec.profiles
        ],
    )


def read_model(message: fleet_pb2.Model) -> ModelSpec:
    """The model that a message describes; what is 0 and has a default gets it. Not checked yet."""
    profiles = tuple(map(_read_profile, message.profiles))
    return ModelSpec(message.name, message.replicas, profiles)


def _read_profile(message: fleet_pb2.Profile) -> Profile:
    return Profile(
        name=message.name,
        engine=message.engine,
        engine_version=message.engine_version,
        arguments=tuple(message.arguments),
        environment=dict(message.environment),
        gpus=message.gpus,
        gpu_model=message.gpu_model,
        gpu_memory_bytes=message.gpu_memory_bytes,
        memory_bytes=message.memory_bytes,
        nodes=message.nodes or 1,
        fabric=message.fabric,
        gateway=message.gateway,
        weights=message.weights,
        port=message.port,
        health_path=message.health_path,
        start_seconds=message.start_seconds or DEFAULT_START_SECONDS,
        drain_seconds=message.drain_seconds if message.HasField("drain_seconds") else DEFAULT_DRAIN_SECONDS,
        stop_grace_seconds=message.stop_grace_seconds or DEFAULT_GRACE_SECONDS,
        drain_path=message.drain_path,
        drain_signal=message.drain_signal,
    )
