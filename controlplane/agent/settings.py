"""`agent.yaml` and the AKV_AGENT_* variables: what one agent runs with (docs/agent.md lists the keys)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from controlplane.agent.engines.catalog import BUILT_IN, EngineKind, Variant
from controlplane.agent.shards.vigil import Patience
from controlplane.base.addresses import HostPort, canonical_address, is_loopback, parse_host_port
from controlplane.base.config_errors import ConfigError, explain
from controlplane.base.credentials import CredentialFiles, CredentialsError
from controlplane.base.pki import PkiError, Role, checked_name
from controlplane.base.strict_yaml import YamlError, load_mapping
from controlplane.model.catalogue import ENGINE_NAME

PREFIX = "AKV_AGENT_"
INSECURE_LOOPBACK = "insecure-loopback"
_LABEL = re.compile(r"[A-Za-z0-9_./-]{1,63}", re.ASCII)


def _absolute(text: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise ValueError("is not an absolute path; begin it with /")
    return text


def _node(text: str) -> str:
    try:
        return checked_name(text)
    except PkiError as error:
        raise ValueError(f"can't be a node's name: {error}") from None


def _address(text: str) -> str:
    try:
        return canonical_address(text)
    except ValueError:
        raise ValueError(
            "is not an IP address; write the one at which this node's shards are reached"
        ) from None


def _hosts(text: str) -> str:
    entries = [entry.strip() for entry in text.split(",")]
    try:
        parsed = [parse_host_port(entry, 1) for entry in entries]
    except ValueError as error:
        raise ValueError(f"can't be used: {error}; write HOST,HOST:PORT,[IPV6]:PORT") from None
    if len(set(parsed)) != len(parsed):
        raise ValueError("names a host twice; name each host once")
    return text


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or len(value) > 256:
            raise ValueError(f"has the label {name[:60]!r}; use short names of letters, digits and _ . / -")
    return labels


def _fabrics(fabrics: dict[str, list[str]]) -> dict[str, list[str]]:
    adapters = [hca for hcas in fabrics.values() for hca in hcas]
    twice = [hca for hca in adapters if adapters.count(hca) > 1]
    if twice:
        raise ValueError(f"has {twice[0]} on two fabrics; name each adapter once")
    return fabrics


_Path = Annotated[str, AfterValidator(_absolute)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Root(_Strict):
    """One folder of weights; from a shared one nothing is ever removed."""

    path: _Path
    shared: bool = False


class VariantSettings(_Strict):
    """What pip gets for one variant of an engine."""

    pip_arguments: list[str] = []
    environment: dict[str, str] = {}


class EngineSettings(_Strict):
    """An engine that the agent does not know, or another way to install one that it knows."""

    package: str
    requirement: str
    command: Annotated[list[str], Field(min_length=1)]
    probe: Annotated[list[str], Field(min_length=1)]
    pip_arguments: list[str] = []
    requirements: str = ""
    variants: dict[str, VariantSettings] = {}


class AgentConfig(_Strict):
    """The whole file. Times are milliseconds and sizes bytes, as the keys' names say."""

    node_id: Annotated[str, AfterValidator(_node)]
    address: Annotated[str, AfterValidator(_address)]
    cluster_hostname: Annotated[str, AfterValidator(_hosts)]
    cluster_api_port: Annotated[int, Field(ge=1, le=65535)] = 5000
    cluster_ca: _Path | None = None
    cluster_cert: _Path | None = None
    cluster_key: _Path | None = None
    cluster_security: Literal["mtls", "insecure-loopback"] = "mtls"
    state_dir: _Path = "/var/lib/akv/agent"
    engines_dir: _Path = "/var/lib/akv/engines"
    kept_engine_versions: Annotated[int, Field(ge=0, le=100)] = 2
    engines: dict[str, EngineSettings] = {}
    weight_roots: Annotated[list[Root], Field(max_length=32)] = []
    gateway_socket: _Path | None = None
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = {}
    fabrics: Annotated[dict[str, list[str]], AfterValidator(_fabrics)] = {}
    perftest_install: Annotated[list[str], Field(max_length=64)] = []
    cgroup_root: _Path | None = None
    shard_log_size: Annotated[int, Field(ge=4096, le=2**32)] = 2**24
    shard_log_files: Annotated[int, Field(ge=1, le=100)] = 4
    heartbeat_ms: Annotated[int, Field(ge=50, le=60_000)] = 5000
    health_interval_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 10_000
    health_deadline_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 30_000
    health_misses: Annotated[int, Field(ge=0, le=1000)] = 6
    sys_root: _Path = "/sys"
    proc_root: _Path = "/proc"

    def hosts(self) -> tuple[HostPort, ...]:
        """The cluster hosts, in the order of asking."""
        entries = self.cluster_hostname.split(",")
        return tuple(parse_host_port(entry.strip(), self.cluster_api_port) for entry in entries)

    def credentials(self) -> CredentialFiles | None:
        """Certificate, key and CA; None in insecure mode."""
        if self.cluster_ca is None or self.cluster_cert is None or self.cluster_key is None:
            return None
        return CredentialFiles(Path(self.cluster_ca), Path(self.cluster_cert), Path(self.cluster_key))

    def patience(self) -> Patience:
        """How engines that serve are probed."""
        return Patience(self.health_interval_ms / 1000, self.health_deadline_ms / 1000, self.health_misses)

    def engine_kinds(self) -> dict[str, EngineKind]:
        """The engines that can be installed: those built in and those of the file, which come first."""
        return dict(BUILT_IN) | {name: _kind(name, entry) for name, entry in self.engines.items()}


def _kind(name: str, entry: EngineSettings) -> EngineKind:
    return EngineKind(
        name=name,
        package=entry.package,
        requirement=entry.requirement,
        command=tuple(entry.command),
        probe=tuple(entry.probe),
        pip_arguments=tuple(entry.pip_arguments),
        requirements=entry.requirements,
        variants={
            variant: Variant(tuple(value.pip_arguments), value.environment)
            for variant, value in entry.variants.items()
        },
    )


def load_agent_config(path: Path, environment: Mapping[str, str]) -> AgentConfig:
    """Read and check the file; AKV_AGENT_<KEY> wins over it. Raises ConfigError with every problem found."""
    origin = path.name
    try:
        document = load_mapping(path)
    except YamlError as error:
        raise ConfigError(str(path), [str(error)]) from error
    document |= _overrides(environment)
    try:
        config = AgentConfig.model_validate(document)
    except ValidationError as error:
        keys = [*AgentConfig.model_fields, *Root.model_fields, *EngineSettings.model_fields]
        raise ConfigError(origin, explain(error, keys, {})) from error
    problems = [*_security_problems(config), *_place_problems(config), *_engine_problems(config)]
    if problems:
        raise ConfigError(origin, problems)
    return config


def _overrides(environment: Mapping[str, str]) -> dict[str, Any]:
    """The variables as keys of the file. Raises ConfigError for one that is no single setting."""
    found: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX).lower()
        entry = AgentConfig.model_fields.get(key)
        if entry is None:
            raise ConfigError(name, [f"{text[:80]!r}: the agent has no setting {key}; unset it"])
        kind = type(entry.default)
        if kind in {list, dict}:
            raise ConfigError(name, [f"{key} has more than one value; write it in the file"])
        number = kind is int and text.isascii() and text.isdecimal()
        found[key] = int(text) if number else text
    return found


def _security_problems(config: AgentConfig) -> list[str]:
    named = [config.cluster_ca, config.cluster_cert, config.cluster_key]
    if config.cluster_security == INSECURE_LOOPBACK:
        if any(named):
            return ["cluster_security: insecure-loopback beside a certificate; remove one of the two"]
        beyond = [str(host) for host in config.hosts() if not is_loopback(host.host)]
        if beyond:
            return [
                f"cluster_hostname: {beyond[0]} is not loopback, which insecure-loopback asks for; use TLS"
            ]
        return []
    if not all(named):
        return [
            "cluster_ca, cluster_cert and cluster_key: not all are set; name the three files from "
            "`clustercli pki issue`, or write cluster_security: insecure-loopback for a test on one machine"
        ]
    return _certificate_problems(config)


def _certificate_problems(config: AgentConfig) -> list[str]:
    files = config.credentials()
    assert files is not None
    try:
        identity = files.load().identity
    except CredentialsError as error:
        return [f"cluster_cert: {error}"]
    if identity.role is not Role.AGENT:
        return [f"cluster_cert: {config.cluster_cert!r} is of {identity}; an agent's is wanted"]
    if identity.name != config.node_id:
        return [
            f"node_id: {config.node_id!r} is not the certificate's name, {identity.name!r}; make them equal"
        ]
    return []


def _place_problems(config: AgentConfig) -> list[str]:
    """Folders that must not lie in one another: what one part removes must not be another's."""
    places = {"state_dir": config.state_dir, "engines_dir": config.engines_dir}
    places |= {f"weight_roots[{number}].path": root.path for number, root in enumerate(config.weight_roots)}
    problems = []
    for key, text in places.items():
        for other, around in places.items():
            if key != other and Path(text).is_relative_to(around) and (text != around or key > other):
                problems.append(f"{key}: {text!r} lies in {other}, {around!r}; choose folders apart")
    return problems


def _engine_problems(config: AgentConfig) -> list[str]:
    return [
        f"engines.{name[:60]}: is not the name of an engine; use lower case letters, digits, _ and -"
        for name in config.engines
        if not ENGINE_NAME.fullmatch(name)
    ]
