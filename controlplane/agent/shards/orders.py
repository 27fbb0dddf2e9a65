"""Turns the leader's StartShard into what is to be run on this node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from akv.v1 import agent_pb2

from controlplane.agent.shards.spec import ShardSpec, SpecError, check

PROCESS_ENGINE = "process"
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")


@dataclass(frozen=True, slots=True)
class EngineHome:
    """An engine that can be run: the first words of its command, and its version."""

    version: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeMeans:
    """What this node can give a shard. `engines`: name to version to home."""

    address: str
    engines: Mapping[str, Mapping[str, EngineHome]] = field(default_factory=dict)
    gpu_uuids: frozenset[str] = frozenset()
    gateway_socket: str = ""
    log_bytes: int = 16 << 20
    log_files: int = 4
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def spec_of(order: agent_pb2.StartShard, means: NodeMeans, model_path: str) -> ShardSpec:
    """The checked spec of an order; a free port is chosen where none is given. Raises SpecError.

    `model_path` is where the order's weights are, empty when it names none.
    """
    missing = [uuid for uuid in order.gpu_uuids if uuid not in means.gpu_uuids]
    if missing:
        raise SpecError(f"shard {order.shard_id}: this node has no GPU {missing[0][:80]!r}")
    home = _home(order, means)
    port = order.port or _free_port(means.address)
    words = _Words(order, means.address, port, model_path)
    return check(
        ShardSpec(
            shard_id=order.shard_id,
            replica_id=order.replica_id,
            model=order.model,
            profile=order.profile,
            generation=order.generation,
            engine=order.engine,
            engine_version=home.version,
            argv=(*home.command, *map(words.fill, order.arguments)),
            env=_environment(order, means, words),
            gpu_uuids=tuple(order.gpu_uuids),
            weights=model_path,
            address=means.address,
            port=port,
            health_path=order.health_path,
            drain_path=order.drain_path,
            drain_signal=order.drain_signal,
            memory_bytes=order.memory_bytes,
            stop_seconds=order.stop_grace_seconds,
            log_bytes=means.log_bytes,
            log_files=means.log_files,
        )
    )


def _home(order: agent_pb2.StartShard, means: NodeMeans) -> EngineHome:
    if order.engine == PROCESS_ENGINE:
        return EngineHome("", ())
    versions = means.engines.get(order.engine, {})
    if not versions:
        raise SpecError(f"shard {order.shard_id}: engine {order.engine[:40]!r} is not installed here")
    if not order.engine_version:
        return versions[max(versions, key=version_key)]
    if order.engine_version not in versions:
        have = ", ".join(sorted(versions))
        raise SpecError(
            f"shard {order.shard_id}: {order.engine} has no {order.engine_version} here, only {have}"
        )
    return versions[order.engine_version]


def version_key(version: str) -> tuple[tuple[int, int | str], ...]:
    """Orders versions by their numbers, so that 0.10 is above 0.9."""
    parts = version.replace("+", ".").replace("-", ".").split(".")
    return tuple((1, int(part)) if part.isdecimal() else (0, part) for part in parts)


class _Words:
    """The placeholders of an order; every other brace stays as it is."""

    def __init__(self, order: agent_pb2.StartShard, address: str, port: int, model_path: str) -> None:
        self._values = {
            "{port}": str(port),
            "{address}": address,
            "{model_path}": model_path,
            "{rank}": str(order.rank),
            "{world_size}": str(order.world_size),
            "{head}": order.head_address,
        }

    def fill(self, text: str) -> str:
        """The text with its placeholders replaced."""
        for name, value in self._values.items():
            text = text.replace(name, value)
        return text


def _environment(order: agent_pb2.StartShard, means: NodeMeans, words: _Words) -> dict[str, str]:
    """A clean environment: the agent's own settings are no business of an engine."""
    environment = {name: means.environment[name] for name in _INHERITED if name in means.environment}
    environment |= {name: words.fill(value) for name, value in order.environment.items()}
    visible = ",".join(order.gpu_uuids)
    environment |= {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible or "void"}
    if order.gateway:
        if not means.gateway_socket:
            raise SpecError(f"shard {order.shard_id} wants a gateway; set gateway_socket on this node")
        environment["AKV_GATEWAY_SOCKET"] = means.gateway_socket
    return environment


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise SpecError(f"no free port at {address}: {error}") from error
