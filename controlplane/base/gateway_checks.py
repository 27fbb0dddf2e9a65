"""What of `gateway.yaml` depends on this build and this machine: backend, security, cores, port, directories.

`--validate-config` runs all of it; a program at its start runs what concerns itself (the control process may
have other cores than the dataplane, and the dataplane holds the port).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

from controlplane.base.addresses import AddressError, canonical_address, is_loopback, parse_host_port
from controlplane.base.credentials import CredentialsError
from controlplane.base.gateway_config import ConfigError, GatewayConfig
from controlplane.base.namespace_secrets import load_namespace_secrets
from controlplane.base.pki import Role

Check = Callable[[GatewayConfig], list[str]]


def check_backend(config: GatewayConfig) -> list[str]:
    """The storage backend is in this build, and does what the file asks of it."""
    if config.storage_backend == "kv-spdk":
        return [
            "storage_backend: 'kv-spdk' is not in this build (no libspdk); set storage_backend: kv-nvme, or "
            "build where pkg-config finds spdk_nvme"
        ]
    rdma = [device.serial for device in config.storage_devices or [] if device.transport == "rdma"]
    if rdma:
        return [
            f"storage_devices: transport 'rdma' of {rdma[0]} is not in this build; write transport: tcp, and "
            "the card's TCP listener"
        ]
    if config.start_clean and config.storage_backend != "kv-memory":
        return ["start_clean: 1 is not supported by this build, which never cleans cards; set start_clean: 0"]
    return []


def check_security(config: GatewayConfig) -> list[str]:
    """Nothing is served to other hosts without a secret."""
    loopback = config.bind_address.startswith("127.") or config.bind_address == "::1"
    if loopback or config.namespace_secrets is not None:
        return []
    return [
        f"bind_address: {config.bind_address!r} lets every host use the cache; set namespace_secrets, or "
        "bind_address: 127.0.0.1"
    ]


def check_cluster(config: GatewayConfig) -> list[str]:
    """How the control process proves who it is to the cluster. The dataplane needs none of it."""
    if not config.cluster_hostname:
        return []
    return _credential_problems(config) if config.cluster_security == "mtls" else _insecure_problems(config)


def _credential_problems(config: GatewayConfig) -> list[str]:
    """The three files are named, can be used, and are a gateway's."""
    keys = ("cluster_ca", "cluster_cert", "cluster_key")
    missing = [key for key in keys if getattr(config, key) is None]
    if missing:
        return [
            f"{missing[0]}: is missing, and the cluster takes no call without a certificate; set "
            f"{', '.join(keys)} to the files of `clustercli pki issue --role gateway`, or, for a cluster on "
            "loopback addresses, cluster_security: insecure-loopback"
        ]
    files = config.cluster_credentials()
    assert files is not None, "all three are named"
    try:
        identity = files.load().identity
    except CredentialsError as error:
        return [f"cluster_cert: {error}"]
    if identity.role is not Role.GATEWAY:
        return [
            f"cluster_cert: {config.cluster_cert!r} is the certificate of {identity}; a gateway may do "
            "less: issue one by `clustercli pki issue --role gateway`"
        ]
    return []


def _insecure_problems(config: GatewayConfig) -> list[str]:
    beyond = [host.host for host in config.cluster_hosts() if not _may_be_loopback(host.host)]
    problems = [
        f"{key}: {getattr(config, key)!r} beside cluster_security: insecure-loopback is of no use; remove one"
        for key in ("cluster_ca", "cluster_cert", "cluster_key")
        if getattr(config, key) is not None
    ]
    if beyond:
        problems.append(
            f"cluster_hostname: {beyond[0]} is not a loopback address, which cluster_security: "
            "insecure-loopback asks for; name hosts of 127.0.0.0/8 or ::1, or use certificates"
        )
    return problems


def _may_be_loopback(host: str) -> bool:
    """False for an address that is none; a name is looked up only when it is asked."""
    try:
        return is_loopback(canonical_address(host))
    except AddressError:
        return True


def check_cores(config: GatewayConfig) -> list[str]:
    """Every core of `core_list` may be used by this process (a pod's cpuset may be a part of the host's)."""
    available = os.sched_getaffinity(0)
    missing = [core for core in config.cores() if core not in available]
    if not missing:
        return []
    return [
        f"core_list: {config.core_list!r} has cores that this process may not use ({_ranges(missing)}); "
        f"choose from {_ranges(sorted(available))}"
    ]


def check_port(config: GatewayConfig) -> list[str]:
    """Nobody listens at `bind_address`:`port`."""
    error = _listening_error(config.bind_address, config.port)
    return [] if error is None else [_port_problem(config, error)]


def check_metrics(config: GatewayConfig) -> list[str]:
    """The address of `metrics` can be listened on."""
    if config.metrics is None:
        return []
    address = parse_host_port(config.metrics)
    error = _listening_error(address.host, address.port)
    if error is None:
        return []
    reason = error.strerror or error
    return [f"metrics: {config.metrics!r} can't be listened on: {reason}; choose another address or port"]


def _listening_error(address: str, port: int) -> OSError | None:
    """What a server that listens there would meet; None when nothing is in its way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def _port_problem(config: GatewayConfig, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"port: {config.port} needs a privilege that this user has not; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"bind_address: {config.bind_address!r} is not an address of this host; choose one that "
            "`ip addr` shows"
        )
    return (
        f"port: {config.port} on {config.bind_address} is in use; choose a free port (unless this gateway "
        "itself runs already)"
    )


def check_directories(config: GatewayConfig) -> list[str]:
    """The directories that the gateway writes to can be made and written."""
    wanted = {
        "status_file": Path(config.status_file).parent,
        "state_dir": Path(config.state_dir),
        "dataplane_socket": Path(config.dataplane_socket).parent,
        "client_socket": Path(config.client_socket).parent,
    }
    problems = [
        f"{key}: {getattr(config, key)!r} can't be written: {reason}; make the directory or change it"
        for key, directory in wanted.items()
        if (reason := _unwritable(directory))
    ]
    if Path(config.status_file).is_dir():
        problems.append(f"status_file: {config.status_file!r} is a directory; name a file in it")
    return problems


def _unwritable(directory: Path) -> str | None:
    """Why nothing can be written there; None when it can. The nearest parent that exists decides."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return f"{existing} is not a directory"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable for this user"


def check_secrets_file(config: GatewayConfig) -> list[str]:
    """The secrets' file is there, for its owner alone, and in order."""
    if config.namespace_secrets is None:
        return []
    try:
        load_namespace_secrets(Path(config.namespace_secrets))
    except ConfigError as error:
        return [f"namespace_secrets: {problem}" for problem in error.problems]
    return []


CONTROL_CHECKS: tuple[Check, ...] = (
    check_backend,
    check_security,
    check_cluster,
    check_directories,
)
DATAPLANE_CHECKS: tuple[Check, ...] = (
    check_backend,
    check_security,
    check_cores,
    check_port,
    check_directories,
    check_secrets_file,
)


ALL_CHECKS: tuple[Check, ...] = (*DATAPLANE_CHECKS, check_cluster, check_metrics)


def check_machine(config: GatewayConfig, checks: tuple[Check, ...] = ALL_CHECKS) -> list[str]:
    """Problems of `config` on this machine, one line each (key, value, remedy); empty when all is well."""
    return [problem for check in checks for problem in check(config)]


def _ranges(cores: list[int]) -> str:
    """`0-3,8` for 0, 1, 2, 3, 8."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and parts[-1][-1] == core - 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
