"""The catalogue of models, and where their replicas were placed. Sizes are bytes, times seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MAX_PROFILES = 16
MAX_REPLICAS = 1000
MAX_GPUS = 64
MAX_NODES = 64
MAX_TEXTS = 256
MAX_TEXT = 4096
# Each replica has a record with its profile, and etcd takes 1.5 MiB in a request.
MAX_MODEL_BYTES = 128 << 10

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
DRAIN_SIGNALS = frozenset({"SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"})
# An engine that a node is to install: folders are named by these words, and pip gets the version.
ENGINE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)
ENGINE_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,63}", re.ASCII)
ENGINE_VARIANT = re.compile(r"[a-z0-9]{0,20}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


class CatalogueError(ValueError):
    """A model that can't be taken: which field, what is wrong, what is right."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to run a model. `gpus` and `memory_bytes` are per node; `nodes` shards make one replica."""

    name: str
    engine: str
    engine_version: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_bytes: int = 0
    memory_bytes: int = 0
    nodes: int = 1
    fabric: str = ""
    gateway: bool = False
    weights: str = ""
    port: int = 0
    health_path: str = ""
    start_seconds: float = 1800.0
    drain_seconds: float = 30.0
    stop_grace_seconds: float = 10.0
    drain_path: str = ""
    drain_signal: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is wanted of one model. The first profile for which there is room is taken."""

    name: str
    replicas: int
    profiles: tuple[Profile, ...]
    revision: int = 0

    def profile(self, name: str) -> Profile | None:
        """The profile of that name."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def replica_ids(self) -> Iterator[str]:
        """The replicas that are wanted."""
        return (f"{self.name}/{number}" for number in range(self.replicas))


@dataclass(frozen=True, slots=True)
class Place:
    """One shard on one node. `generation` is the number of its last start, 0 before the first, and `failures`
    how often in a row it had failed there by then.
    """

    shard_id: str
    node_id: str
    rank: int
    gpu_uuids: tuple[str, ...]
    generation: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A replica that has its places. It keeps the profile as it was when it was placed.

    `leaving` says why the replica has to go; empty while it stays.
    """

    replica_id: str
    model: str
    profile: Profile
    places: tuple[Place, ...]
    leaving: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What outlives a leader of one node: `draining` is an operator's wish, `lost` the last verdict."""

    node_id: str
    incarnation: int
    draining: bool = False
    lost: bool = False


def check_node_name(name: str) -> str:
    """`name`, if a node can have it. Raises CatalogueError."""
    if not _NODE.fullmatch(name):
        raise CatalogueError(
            f"{name[:80]!r} is not a node name: letters, digits, '.', '-' and '_', at most 253"
        )
    return name


def check_model(spec: ModelSpec) -> ModelSpec:
    """`spec`, if it makes sense. Raises CatalogueError."""
    _name(spec.name, "name")
    _within(spec.replicas, 0, MAX_REPLICAS, "replicas")
    _within(len(spec.profiles), 1, MAX_PROFILES, "the number of profiles")
    names = [profile.name for profile in spec.profiles]
    if len(set(names)) != len(names):
        raise CatalogueError(f"profiles have one name twice: {', '.join(names)}")
    for profile in spec.profiles:
        _check_profile(profile)
    size = sum(len(text.encode("utf-8", "replace")) for profile in spec.profiles for text in _texts(profile))
    if size > MAX_MODEL_BYTES:
        raise CatalogueError(
            f"its texts are {size} bytes, at most {MAX_MODEL_BYTES} are taken: put long ones into a file on "
            "the nodes and name that"
        )
    return spec


def _check_profile(profile: Profile) -> None:
    where = f"profile {profile.name[:80]!r}"
    _name(profile.name, "the name of a profile")
    _name(profile.engine, f"{where}: engine")
    _within(profile.gpus, 0, MAX_GPUS, f"{where}: gpus")
    _within(profile.nodes, 1, MAX_NODES, f"{where}: nodes")
    _within(profile.port, 0, 65535, f"{where}: port")
    _within(profile.memory_bytes, 0, 2**50, f"{where}: memory_bytes")
    _within(profile.gpu_memory_bytes, 0, 2**50, f"{where}: gpu_memory_bytes")
    _within(profile.start_seconds, 1, 86400, f"{where}: start_seconds")
    _within(profile.drain_seconds, 0, 86400, f"{where}: drain_seconds")
    _within(profile.stop_grace_seconds, 0, 3600, f"{where}: stop_grace_seconds")
    _within(len(profile.arguments), 0, MAX_TEXTS, f"{where}: the number of arguments")
    _within(len(profile.environment), 0, MAX_TEXTS, f"{where}: the number of variables")
    if profile.nodes > 1 and not profile.port:
        raise CatalogueError(f"{where}: port is 0; several nodes meet at a port of the first: choose one")
    if profile.health_path and not profile.health_path.startswith("/"):
        raise CatalogueError(f"{where}: health_path {profile.health_path[:80]!r} does not begin with '/'")
    if profile.drain_path and (profile.drain_signal or not profile.drain_path.startswith("/")):
        raise CatalogueError(f"{where}: drain_path is to begin with '/' and to stand without drain_signal")
    if profile.drain_signal and profile.drain_signal not in DRAIN_SIGNALS:
        raise CatalogueError(f"{where}: drain_signal is not one of {', '.join(sorted(DRAIN_SIGNALS))}")
    for variable in profile.environment:
        if not _VARIABLE.fullmatch(variable):
            raise CatalogueError(f"{where}: {variable[:80]!r} is not the name of a variable")
    if any(len(text) > MAX_TEXT or "\0" in text for text in _texts(profile)):
        raise CatalogueError(f"{where}: a text is longer than {MAX_TEXT} characters or has a NUL in it")


def _texts(profile: Profile) -> Iterator[str]:
    """The texts of a profile that can be of any length."""
    yield from (*profile.arguments, *profile.environment, *profile.environment.values())
    yield from (profile.engine_version, profile.gpu_model, profile.fabric, profile.weights)
    yield from (profile.health_path, profile.drain_path)


def engine_problem(engine: str, version: str, variant: str) -> str:
    """Why an engine can't be installed under these words on any node; empty when it can."""
    if not ENGINE_NAME.fullmatch(engine):
        return f"{engine[:40]!r} is not an engine's name: use small letters, digits, '_' and '-', at most 40"
    if not ENGINE_VERSION.fullmatch(version):
        return f"{version[:40]!r} is not a version of {engine}: write an exact one, as 0.11.0"
    if not ENGINE_VARIANT.fullmatch(variant):
        return f"{variant[:40]!r} is not a variant of {engine}: use small letters and digits, at most 20"
    return ""


def _name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise CatalogueError(
            f"{what} is {name[:80]!r}: use small letters, digits, '.' and '-', at most 63 of them"
        )


def _within(value: float, low: float, high: float, what: str) -> None:
    if not low <= value <= high:
        shown = value if isinstance(value, int) else f"{value:g}"
        raise CatalogueError(f"{what} is {shown}, which is not in {low:g}..{high:g}")
