"""`gateway.yaml`: the one configuration of a gateway pod, read by `akv-gateway` and `akv-dataplane` alike.

Keys are those of the manual (docs/gateway.md lists them all). The file is checked in full before anything
starts; what depends on the machine is in gateway_checks.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from controlplane.base.addresses import (
    AddressError,
    HostPort,
    canonical_address,
    canonical_port,
    parse_host_port,
)
from controlplane.base.card_names import is_nqn, is_serial, is_uuid
from controlplane.base.config_errors import ConfigError, explain
from controlplane.base.cpu_list import parse_cpu_list
from controlplane.base.credentials import CredentialFiles
from controlplane.base.strict_yaml import YamlError, load_mapping

__all__ = ["ConfigError", "GatewayConfig", "StorageDevice", "load_gateway_config"]

MAX_CARDS = 8
_UNIX_PATH_BYTES = 107

_MISPLACED = {
    "affinity_blocks": "it is a setting of the client: set it in the connector's configuration",
    "namespace": "it is a setting of the client: set it in the connector's configuration",
}


def _address(text: str) -> str:
    try:
        return canonical_address(text)
    except ValueError:
        raise ValueError("is not an IP address; write an IPv4 or IPv6 address") from None


def _absolute(text: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise ValueError("is not an absolute path; begin it with /")
    return text


def _socket_path(text: str) -> str:
    length = len(_absolute(text).encode())
    if length > _UNIX_PATH_BYTES:
        raise ValueError(
            f"has {length} bytes; a Unix socket's path has at most {_UNIX_PATH_BYTES}: choose a shorter one"
        )
    return text


def _service_id(value: object) -> object:
    """A port may stand in YAML as a number; NVMe-oF calls it by its decimal text."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        return text
    try:
        return canonical_port(text)
    except AddressError:
        raise ValueError("is not a port; write a number from 1 to 65535") from None


def _flag(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _nqn(text: str) -> str:
    if not is_nqn(text):
        raise ValueError(
            'is not an NVMe qualified name; it begins with "nqn." and has at most 223 characters'
        )
    return text


def _serial(text: str) -> str:
    if not is_serial(text):
        raise ValueError("is not a serial number; write the 1 to 20 characters that `nvme list` shows")
    return text


def _cores(text: str) -> str:
    parse_cpu_list(text)
    return text


def _hosts(text: str) -> str:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise ValueError("has an empty entry; write HOST,HOST,HOST")
    hosts = [_host(entry) for entry in entries]
    twice = [str(host) for host in hosts if hosts.count(host) > 1]
    if twice:
        raise ValueError(f"names {twice[0].removesuffix(':0')} twice; name each host once")
    return text


def _host(entry: str) -> HostPort:
    """Host and port, port 0 where none is written (the key cluster_api_port gives it)."""
    try:
        host = parse_host_port(entry, 0)
    except ValueError as error:
        raise ValueError(f"can't be used: {error}; write HOST, HOST:PORT or [IPV6]:PORT") from None
    if host.port == 0 and entry.endswith(":0"):
        raise ValueError("has port 0; write a port from 1 to 65535")
    return host


def _listen(text: str) -> str:
    try:
        address = parse_host_port(text)
        canonical_address(address.host)
    except ValueError as error:
        raise ValueError(f"can't be used: {error}; write ADDRESS:PORT") from None
    if address.port == 0:
        raise ValueError("has port 0, at which nobody would find it; write a port from 1 to 65535")
    return text


def _cluster_uuid(text: str) -> str:
    if not is_uuid(text):
        raise ValueError("is not a cluster's uuid; copy it from `clustercli get_cluster`")
    return text.lower()


_Path = Annotated[str, AfterValidator(_absolute)]
_Socket = Annotated[str, AfterValidator(_socket_path)]
_Address = Annotated[str, AfterValidator(_address)]
_Polls = Annotated[int, Field(ge=1, le=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StorageDevice(_Strict):
    """One card of a fixed list (shared cache, no cluster)."""

    serial: Annotated[str, AfterValidator(_serial)]
    nqn: Annotated[str, AfterValidator(_nqn)]
    transport: Literal["tcp", "rdma"] = "tcp"
    traddr: _Address
    trsvcid: Annotated[str, BeforeValidator(_service_id)] = "4420"


class GatewayConfig(_Strict):
    """The whole file. Times are milliseconds and sizes bytes, as the keys' names say."""

    storage_backend: Literal["kv-nvme", "kv-memory", "kv-spdk"] = "kv-nvme"
    cluster_hostname: Annotated[str, AfterValidator(_hosts)] | None = None
    storage_devices: Annotated[list[StorageDevice], Field(min_length=1, max_length=MAX_CARDS)] | None = None
    cluster_api_port: Annotated[int, Field(ge=1, le=65535)] = 5000
    cluster_etcd_timeout_ms: Annotated[int, Field(ge=20, le=60_000)] = 500
    cluster_poll_ms: Annotated[int, Field(ge=50, le=60_000)] = 1000
    cluster_sick_polls: _Polls = 3
    cluster_absent_polls: _Polls = 3
    cluster_security: Literal["mtls", "insecure-loopback"] = "mtls"
    cluster_ca: _Path | None = None
    cluster_cert: _Path | None = None
    cluster_key: _Path | None = None
    accept_cluster_uuid: Annotated[str, AfterValidator(_cluster_uuid)] | None = None
    shared_storage: bool = True
    start_clean: Annotated[int, BeforeValidator(_flag), Field(ge=0, le=1)] = 0
    num_dbs: Annotated[int, Field(ge=1, le=2**32 - 1)] = 128
    io_timeout_ms: Annotated[int, Field(ge=10, le=600_000)] = 5000
    io_timeout_strikes: Annotated[int, Field(ge=1, le=1000)] = 3
    nvme_tcp_digests: Literal["none", "prefer", "require"] = "none"
    port: Annotated[int, Field(ge=1, le=65535)] = 5557
    bind_address: _Address = "127.0.0.1"
    shared_memory_size: Annotated[int, Field(ge=2**20, le=2**48)] = 2**30
    read_cache_size: Annotated[int, Field(ge=0, le=2**48)] | None = None
    lend_cached_blocks: bool = False
    client_regions: Annotated[int, Field(ge=0, le=1024)] = 16
    client_regions_size: Annotated[int, Field(ge=0, le=2**48)] = 2**36
    thread_pool_size: Annotated[int, Field(ge=1, le=256)] = 1
    core_list: Annotated[str, AfterValidator(_cores)] | None = None
    busy_poll: bool = False
    short_wakeups: bool = True
    status_file: _Path = "/run/akv/status.prom"
    dataplane_socket: _Socket = "/run/akv/dataplane.sock"
    client_socket: _Socket = "/run/akv/gateway.sock"
    state_dir: _Path = "/run/akv"
    namespace_secrets: _Path | None = None
    metrics: Annotated[str, AfterValidator(_listen)] | None = None

    def cluster_hosts(self) -> tuple[HostPort, ...]:
        """The cluster hosts with their API port, in the order of asking; empty without a cluster."""
        entries = self.cluster_hostname.split(",") if self.cluster_hostname else []
        return tuple(parse_host_port(entry.strip(), self.cluster_api_port) for entry in entries)

    def cluster_credentials(self) -> CredentialFiles | None:
        """The files to show to the cluster; None with insecure-loopback, and where a key is missing."""
        if self.cluster_security != "mtls" or not (
            self.cluster_ca and self.cluster_cert and self.cluster_key
        ):
            return None
        return CredentialFiles(Path(self.cluster_ca), Path(self.cluster_cert), Path(self.cluster_key))

    def cache_bytes(self) -> int:
        """What hot blocks may take of shared_memory_size while clients leave it: half, unless it is given."""
        return self.shared_memory_size // 2 if self.read_cache_size is None else self.read_cache_size

    def cores(self) -> tuple[int, ...]:
        """The cores of `core_list`: one a worker, the last for Python; empty when nothing is pinned."""
        return parse_cpu_list(self.core_list) if self.core_list is not None else ()


def load_gateway_config(path: Path) -> GatewayConfig:
    """Read and check the file. Raises ConfigError with every problem that was found, one line each.

    Fields are checked first; only when each is right are they checked against each other.
    """
    origin = path.name
    try:
        document = load_mapping(path)
    except YamlError as error:
        raise ConfigError(str(path), [str(error)]) from error
    try:
        config = GatewayConfig.model_validate(document)
    except ValidationError as error:
        keys = [*GatewayConfig.model_fields, *StorageDevice.model_fields]
        raise ConfigError(origin, explain(error, keys, _MISPLACED)) from error
    problems = [*_source_problems(config), *_size_problems(config), *_place_problems(config)]
    if problems:
        raise ConfigError(origin, problems)
    return config


def _source_problems(config: GatewayConfig) -> list[str]:
    """Exactly one source of cards, and a fixed list without contradictions."""
    if config.cluster_hostname and config.storage_devices:
        return [
            f"storage_devices: {len(config.storage_devices)} devices beside cluster_hostname "
            f"{config.cluster_hostname!r}; remove one of the two: the cluster names the cards"
        ]
    if not config.cluster_hostname and not config.storage_devices:
        return [
            "cluster_hostname: is missing; name the cluster hosts, or list the cards under storage_devices"
        ]
    serials = [device.serial for device in config.storage_devices or []]
    return [
        f"storage_devices: serial {serial!r} is there twice; list each card once"
        for serial in sorted({serial for serial in serials if serials.count(serial) > 1})
    ]


def _size_problems(config: GatewayConfig) -> list[str]:
    problems = []
    cores, needed = config.cores(), config.thread_pool_size + 1
    if cores and len(cores) != needed:
        problems.append(
            f"core_list: {config.core_list!r} has {len(cores)} cores, but thread_pool_size "
            f"{config.thread_pool_size} needs {needed} (one a worker and one more); change one of them"
        )
    if config.cache_bytes() > config.shared_memory_size:
        problems.append(
            f"read_cache_size: {config.read_cache_size} is more than shared_memory_size "
            f"{config.shared_memory_size}, of which it is a part; make it smaller, or 0 for no cache"
        )
    if config.lend_cached_blocks:
        problems += _lending_problems(config)
    if config.start_clean and config.shared_storage:
        problems.append(
            "start_clean: 1 with shared_storage: true would clean a shared cache; set start_clean: 0"
        )
    return problems


def _lending_problems(config: GatewayConfig) -> list[str]:
    """Who may read the cache's memory, and what is left for sessions beside it."""
    problems = []
    if config.namespace_secrets is not None:
        problems.append(
            "lend_cached_blocks: true with namespace_secrets would let a client of one namespace read the "
            "blocks of all; remove one of the two"
        )
    if config.cache_bytes() in {0, config.shared_memory_size}:
        problems.append(
            f"lend_cached_blocks: true with read_cache_size {config.cache_bytes()} of shared_memory_size "
            f"{config.shared_memory_size}; blocks to lend and sessions need memory each: set a size between"
        )
    return problems


def _place_problems(config: GatewayConfig) -> list[str]:
    problems = []
    seen: dict[str, str] = {}
    for key in ("state_dir", "status_file", "dataplane_socket", "client_socket"):
        path = os.path.normpath(getattr(config, key))
        if path in seen:
            problems.append(f"{key}: {getattr(config, key)!r} is {seen[path]} too; choose another path")
        seen[path] = key
    if config.accept_cluster_uuid and not config.cluster_hostname:
        problems.append(
            f"accept_cluster_uuid: {config.accept_cluster_uuid!r} without cluster_hostname; remove it"
        )
    return problems
