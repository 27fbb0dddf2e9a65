"""The fleet's records as JSON: models, assignments, nodes, setbacks, engines. They are read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.model.catalogue import (
    Assignment,
    CatalogueError,
    ModelSpec,
    NodeRecord,
    Place,
    Profile,
    check_model,
)
from controlplane.store.codec import Fields, RecordError, encode

_BIG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EngineWanted:
    """An engine that every node should have; an empty variant lets the node choose."""

    engine: str
    version: str
    variant: str = ""


@dataclass(slots=True)
class FleetRecords:
    """Everything below `/fleet/`; `problems` are the records that can't be read.

    A model that can't be read is wanted all the same, nobody knows how: `unreadable_models` has its name.
    `setbacks` says of a replica which nodes it is to avoid, and until when in Unix seconds.
    """

    models: dict[str, ModelSpec] = field(default_factory=dict)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    setbacks: dict[str, dict[str, float]] = field(default_factory=dict)
    engines: tuple[EngineWanted, ...] = ()
    problems: list[str] = field(default_factory=list)
    unreadable_models: set[str] = field(default_factory=set)


def encode_model(spec: ModelSpec) -> bytes:
    """`/fleet/models/<name>`."""
    return encode(
        {
            "name": spec.name,
            "replicas": spec.replicas,
            "revision": spec.revision,
            "profiles": [_profile_fields(profile) for profile in spec.profiles],
        }
    )


def decode_model(name: str, value: bytes) -> ModelSpec:
    """Inverse of `encode_model`. Raises RecordError."""
    fields = Fields(value)
    if fields.text("name") != name:
        raise RecordError(f"name is {fields.text('name')!r}, not that of its key")
    profiles = tuple(map(_profile, fields.objects("profiles")))
    spec = ModelSpec(name, fields.integer("replicas", 0, _BIG), profiles, fields.integer("revision", 0, _BIG))
    try:
        return check_model(spec)
    except CatalogueError as error:
        raise RecordError(str(error)) from None


def encode_assignment(assignment: Assignment) -> bytes:
    """`/fleet/assignments/<replica>`."""
    places = [
        {
            "shard_id": place.shard_id,
            "node_id": place.node_id,
            "rank": place.rank,
            "gpu_uuids": list(place.gpu_uuids),
            "generation": place.generation,
            "failures": place.failures,
        }
        for place in assignment.places
    ]
    return encode(
        {
            "replica_id": assignment.replica_id,
            "model": assignment.model,
            "profile": _profile_fields(assignment.profile),
            "places": places,
            "leaving": assignment.leaving,
        }
    )


def decode_assignment(replica: str, value: bytes) -> Assignment:
    """Inverse of `encode_assignment`. Raises RecordError."""
    fields = Fields(value)
    if fields.text("replica_id") != replica:
        raise RecordError(f"replica_id is {fields.text('replica_id')!r}, not that of its key")
    return Assignment(
        replica,
        fields.text("model"),
        _profile(fields.object("profile")),
        tuple(map(_place, fields.objects("places"))),
        fields.text("leaving", empty=True),
    )


def encode_node(record: NodeRecord) -> bytes:
    """`/fleet/nodes/<node>`."""
    return encode({"incarnation": record.incarnation, "draining": record.draining, "lost": record.lost})


def decode_node(node: str, value: bytes) -> NodeRecord:
    """Inverse of `encode_node`. Raises RecordError."""
    fields = Fields(value)
    return NodeRecord(
        node, fields.integer("incarnation", 0, 2**64 - 1), fields.flag("draining"), fields.flag("lost")
    )


def encode_setbacks(replica: str, nodes: Mapping[str, float]) -> bytes:
    """`/fleet/setbacks/<replica>`."""
    avoided = [{"node_id": node, "until": until} for node, until in sorted(nodes.items())]
    return encode({"replica_id": replica, "nodes": avoided})


def decode_setbacks(replica: str, value: bytes) -> dict[str, float]:
    """Inverse of `encode_setbacks`. Raises RecordError."""
    fields = Fields(value)
    if fields.text("replica_id") != replica:
        raise RecordError(f"replica_id is {fields.text('replica_id')!r}, not that of its key")
    return {avoided.text("node_id"): avoided.number("until") for avoided in fields.objects("nodes")}


def encode_engines(engines: tuple[EngineWanted, ...]) -> bytes:
    """`/fleet/engines`."""
    return encode(
        {
            "engines": [
                {"engine": wanted.engine, "version": wanted.version, "variant": wanted.variant}
                for wanted in engines
            ]
        }
    )


def decode_engines(value: bytes) -> tuple[EngineWanted, ...]:
    """Inverse of `encode_engines`. Raises RecordError."""
    return tuple(
        EngineWanted(
            wanted.text("engine"), wanted.text("version", empty=True), wanted.text("variant", empty=True)
        )
        for wanted in Fields(value).objects("engines")
    )


def _profile_fields(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "engine": profile.engine,
        "engine_version": profile.engine_version,
        "arguments": list(profile.arguments),
        "environment": dict(profile.environment),
        "gpus": profile.gpus,
        "gpu_model": profile.gpu_model,
        "gpu_memory_bytes": profile.gpu_memory_bytes,
        "memory_bytes": profile.memory_bytes,
        "nodes": profile.nodes,
        "fabric": profile.fabric,
        "gateway": profile.gateway,
        "weights": profile.weights,
        "port": profile.port,
        "health_path": profile.health_path,
        "start_seconds": profile.start_seconds,
        "drain_seconds": profile.drain_seconds,
        "stop_grace_seconds": profile.stop_grace_seconds,
        "drain_path": profile.drain_path,
        "drain_signal": profile.drain_signal,
    }


def _profile(fields: Fields) -> Profile:
    return Profile(
        name=fields.text("name"),
        engine=fields.text("engine"),
        engine_version=fields.text("engine_version", empty=True),
        arguments=fields.strings("arguments"),
        environment=fields.texts("environment"),
        gpus=fields.integer("gpus", 0, _BIG),
        gpu_model=fields.text("gpu_model", empty=True),
        gpu_memory_bytes=fields.integer("gpu_memory_bytes", 0, _BIG),
        memory_bytes=fields.integer("memory_bytes", 0, _BIG),
        nodes=fields.integer("nodes", 1, _BIG),
        fabric=fields.text("fabric", empty=True),
        gateway=fields.flag("gateway"),
        weights=fields.text("weights", empty=True),
        port=fields.integer("port", 0, 65535),
        health_path=fields.text("health_path", empty=True),
        start_seconds=fields.number("start_seconds"),
        drain_seconds=fields.number("drain_seconds"),
        stop_grace_seconds=fields.number("stop_grace_seconds"),
        drain_path=fields.optional_text("drain_path"),
        drain_signal=fields.optional_text("drain_signal"),
    )


def _place(fields: Fields) -> Place:
    return Place(
        fields.text("shard_id"),
        fields.text("node_id"),
        fields.integer("rank", 0, _BIG),
        fields.strings("gpu_uuids"),
        fields.integer("generation", 0, _BIG),
        fields.optional_integer("failures", 0, _BIG),
    )
