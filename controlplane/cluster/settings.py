"""Settings of the cluster service: `awide-cluster.env`, `adpcli_compat.env` and the process environment."""

from __future__ import annotations

import difflib
import re
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from controlplane.base.addresses import (
    AddressError,
    HostPort,
    canonical_address,
    is_loopback,
    parse_host_port,
)
from controlplane.base.pki import PkiError, checked_name
from controlplane.cluster.envfile import SettingsError, read_env_file

MAIN_FILE = "awide-cluster.env"
SERIALS_FILE = "adpcli_compat.env"
PROCESS, DOCKER = "process", "docker"
UNIX_PATH_BYTES = 107
INSECURE_LOOPBACK, MTLS = "insecure-loopback", "mtls"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}", re.ASCII)
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# NVMe's serial number: up to 20 printable characters; here without ',' (the list) and '/' (the key in etcd).
_SERIAL = re.compile(r"[\x21-\x2b\x2d\x2e\x30-\x7e]{1,20}")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What one cluster service runs with. Times are seconds; `address` is a literal in canonical spelling.

    `state_dir` holds what the host knows of its membership; it must not lie in `data_dir`, so that it
    survives the loss of etcd's data.
    """

    host: str
    address: str
    api_port: int
    etcd_client_port: int
    etcd_peer_port: int
    data_dir: Path
    log_dir: Path
    state_dir: Path
    etcd_binary: Path | None
    etcd_runner: str
    etcd_image: str
    etcd_container: str
    docker_socket: Path
    etcd_quota_bytes: int
    learner_seconds: float
    even_voters_seconds: float
    card_cli: tuple[str, ...]
    card_check: tuple[str, ...]
    card_check_seconds: float
    cycle_seconds: float
    exporter_port: int
    ping_port: int
    exporter_tls: bool
    data_addresses: tuple[str, ...]
    metrics: Literal["prometheus", "exporters"]
    prometheus_url: str
    monitoring_dir: Path
    scrape_seconds: float
    ping_loss_percent: float
    warmup_cycles: int
    bad_member_strikes: int
    witness: bool
    security: str
    pki_dir: Path
    admin_socket: Path
    enroll_port: int
    agent_write_seconds: float
    xdp_serials: Mapping[str, str] = field(default_factory=dict)

    @property
    def api_endpoint(self) -> str:
        """ADDRESS:PORT of the cluster API."""
        return str(HostPort(self.address, self.api_port))

    @property
    def exporter_endpoint(self) -> str:
        """ADDRESS:PORT of the host's card exporter."""
        return str(HostPort(self.address, self.exporter_port))

    @property
    def ping_endpoint(self) -> str:
        """ADDRESS:PORT of the host's ping exporter; empty for a witness without a data address."""
        if self.witness and not self.data_addresses:
            return ""
        return str(HostPort(self.address, self.ping_port))

    @property
    def _scheme(self) -> str:
        return "https" if self.security == MTLS else "http"

    @property
    def client_url(self) -> str:
        """URL at which this host's etcd serves clients."""
        return HostPort(self.address, self.etcd_client_port).url(self._scheme)

    @property
    def peer_url(self) -> str:
        """URL at which this host's etcd serves its peers."""
        return HostPort(self.address, self.etcd_peer_port).url(self._scheme)

    @property
    def addresses(self) -> dict[str, str]:
        """What the host's record in the cluster says of how to reach it."""
        return {
            "api": self.api_endpoint,
            "exporter": self.exporter_endpoint,
            "etcd_client": self.client_url,
            "etcd_peer": self.peer_url,
            **({"ping": self.ping_endpoint} if self.ping_endpoint else {}),
            **({"data": ",".join(self.data_addresses)} if self.data_addresses else {}),
            **({"metrics_scheme": "https"} if self.exporter_tls else {}),
        }


def load_settings(config_dir: Path, environment: Mapping[str, str]) -> ClusterSettings:
    """Read and check all settings; the environment wins over the files. Raises SettingsError.

    A missing file has no settings, since every key has a default; a missing directory is an
    error, since it is most likely a misspelt --config-dir.
    """
    if not _is_directory(config_dir):
        raise SettingsError(
            f"--config-dir {str(config_dir)[:200]} is not a directory: create it, or correct the path"
        )
    values = {"AWC_HOST": socket.gethostname(), "AWC_STATE_DIR": str(config_dir.absolute() / "state")}
    for name in (MAIN_FILE, SERIALS_FILE):
        found = read_env_file(config_dir / name)
        _refuse_unknown(found, config_dir / name)
        values |= {key: value for key, value in found.items() if value}
    values |= {key: environment[key] for key in KEYS if environment.get(key)}
    values.setdefault("AWC_PKI_DIR", str(Path(values["AWC_STATE_DIR"]) / "pki"))
    fields = {key.field: _parse(name, key, values.get(name, key.default)) for name, key in KEYS.items()}
    settings = ClusterSettings(**fields)
    _cross_check(settings)
    return settings


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or none at all
        return False


def _refuse_unknown(found: Mapping[str, str], path: Path) -> None:
    for key in found:
        if key not in KEYS:
            near = difflib.get_close_matches(key, sorted(KEYS), n=1)
            hint = f"did you mean {near[0]}?" if near else "remove the line"
            raise SettingsError(f"{path}: {key} is not a setting of awide-cluster; {hint}")


def _parse(name: str, key: _Key, text: str) -> Any:
    try:
        return key.parse(text)
    except ValueError as error:
        raise SettingsError(f"{name}={text!r}: {error}") from None


def _number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], Any]:
    what = "a whole number" if kind is int else "a number"

    def parse(text: str) -> int | float:
        remedy = f"write {what} from {low:g} to {high:g}"
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(remedy) from None
        if not low <= value <= high:  # also refuses NaN
            raise ValueError(remedy)
        return value

    return parse


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("not a host name: use letters, digits, '.', '-' and '_'")
    return text


def _address(text: str) -> str:
    try:
        return canonical_address(text)
    except AddressError as error:
        raise ValueError(f"{error}; write the literal address of this host, not a name") from None


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(sorted({_address(part.strip()) for part in text.split(",") if part.strip()}))


def _metrics(text: str) -> str:
    if text not in {"prometheus", "exporters"}:
        raise ValueError("where metrics come from: write prometheus, or exporters to ask these directly")
    return text


def _url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme != "http":
        raise ValueError("not an http:// URL: write http://ADDRESS:PORT")
    try:
        return parse_host_port(rest.removesuffix("/")).url("http")
    except AddressError as error:
        raise ValueError(f"{error}; write http://ADDRESS:PORT") from None


def _directory(text: str) -> Path:
    path = Path(text)
    if not text.isprintable():
        raise ValueError("a path with characters that can't be seen: write it anew")
    if not path.is_absolute():
        raise ValueError("a relative path: write it from the root, as /var/lib/etcd")
    return path


def _socket(text: str) -> Path:
    path = _directory(text)
    if len(text.encode()) > UNIX_PATH_BYTES:
        raise ValueError(
            f"longer than the {UNIX_PATH_BYTES} bytes of a Unix socket's path: choose a shorter one"
        )
    return path


def _optional_path(text: str) -> Path | None:
    return _directory(text) if text else None


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"not a command line ({error}): balance its quotes") from None
    if not words or not words[0]:
        raise ValueError("no command: write the one that lists the cards, as `akv-softcard list --json`")
    return words


def _runner(text: str) -> str:
    if text not in {PROCESS, DOCKER}:
        raise ValueError(f"not a way to run etcd: write {PROCESS} or {DOCKER}")
    return text


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError("not the name of an image: write it as quay.io/coreos/etcd:v3.5.30")
    return text


def _container(text: str) -> str:
    if not _CONTAINER.fullmatch(text):
        raise ValueError("not a name for a container: use letters, digits, '.', '-' and '_'")
    return text


def _flag(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError("a switch: write 0 or 1")
    return text == "1"


def _security(text: str) -> str:
    if text not in {INSECURE_LOOPBACK, MTLS}:
        raise ValueError(
            f"write AWC_SECURITY={MTLS} for certificates on every connection, or AWC_SECURITY="
            f"{INSECURE_LOOPBACK} for none, on loopback addresses only"
        )
    return text


def _serials(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        device, colon, serial = part.partition(":")
        if not colon or not _DEVICE.fullmatch(device) or not _SERIAL.fullmatch(serial):
            raise ValueError(f"{part!r} is not DEVICE:SERIAL, as in xdp0:L0P0")
        if device in pairs or serial in pairs.values():
            raise ValueError(f"{part!r} repeats a device or a serial: keep one of the entries")
        pairs[device] = serial
    return pairs


@dataclass(frozen=True, slots=True)
class _Key:
    field: str
    parse: Callable[[str], Any]
    default: str


_PORT = _number(int, 1, 65535)
KEYS = {
    "AWC_HOST": _Key("host", _host, ""),
    "AWC_ADDRESS": _Key("address", _address, "127.0.0.1"),
    "AWC_API_PORT": _Key("api_port", _PORT, "5000"),
    "AWC_ETCD_CLIENT_PORT": _Key("etcd_client_port", _PORT, "2379"),
    "AWC_ETCD_PEER_PORT": _Key("etcd_peer_port", _PORT, "2380"),
    "AWC_DATA_DIR": _Key("data_dir", _directory, "/var/lib/etcd"),
    "AWC_LOG_DIR": _Key("log_dir", _directory, "/var/log/adp"),
    "AWC_STATE_DIR": _Key("state_dir", _directory, ""),
    "AWC_ETCD_BINARY": _Key("etcd_binary", _optional_path, ""),
    "AWC_ETCD_RUNNER": _Key("etcd_runner", _runner, PROCESS),
    "AWC_ETCD_IMAGE": _Key("etcd_image", _image, "quay.io/coreos/etcd:v3.5.30"),
    "AWC_ETCD_CONTAINER": _Key("etcd_container", _container, "etcd"),
    "AWC_DOCKER_SOCKET": _Key("docker_socket", _directory, "/var/run/docker.sock"),
    "AWC_ETCD_QUOTA_BYTES": _Key("etcd_quota_bytes", _number(int, 1 << 20, 8 << 30), str(1 << 30)),
    "AWC_LEARNER_SECONDS": _Key("learner_seconds", _number(float, 1, 86400), "120"),
    "AWC_EVEN_VOTERS_SECONDS": _Key("even_voters_seconds", _number(float, 1, 86400), "120"),
    "AWC_CARD_CLI": _Key("card_cli", _command, "akv-softcard list --json"),
    "AWC_CARD_CHECK": _Key("card_check", _command, "akv-nvme"),
    "AWC_CARD_CHECK_SECONDS": _Key("card_check_seconds", _number(float, 0, 86400), "60"),
    "AWC_CYCLE_SECONDS": _Key("cycle_seconds", _number(float, 0.1, 3600), "6"),
    "AWC_EXPORTER_PORT": _Key("exporter_port", _PORT, "7891"),
    "AWC_PING_PORT": _Key("ping_port", _PORT, "9427"),
    "AWC_EXPORTER_TLS": _Key("exporter_tls", _flag, "0"),
    "AWC_DATA_ADDRESSES": _Key("data_addresses", _addresses, ""),
    "AWC_METRICS": _Key("metrics", _metrics, "prometheus"),
    "AWC_PROMETHEUS_URL": _Key("prometheus_url", _url, "http://127.0.0.1:9090"),
    "AWC_MONITORING_DIR": _Key("monitoring_dir", _directory, "/srv/docker/awide/monitoring"),
    "AWC_SCRAPE_SECONDS": _Key("scrape_seconds", _number(float, 0.1, 60), "5"),
    "AWC_PING_LOSS_PERCENT": _Key("ping_loss_percent", _number(float, 1, 100), "50"),
    "AWC_WITNESS": _Key("witness", _flag, "0"),
    "AWC_SECURITY": _Key("security", _security, MTLS),
    "AWC_PKI_DIR": _Key("pki_dir", _directory, ""),
    "AWC_ADMIN_SOCKET": _Key("admin_socket", _socket, "/run/awide-cluster/admin.sock"),
    "AWC_ENROLL_PORT": _Key("enroll_port", _PORT, "5001"),
    "AWC_AGENT_WRITE_SECONDS": _Key("agent_write_seconds", _number(float, 1, 3600), "30"),
    "AWC_XDP_SERIALS": _Key("xdp_serials", _serials, ""),
    "LEADER_WARMUP_CYCLES": _Key("warmup_cycles", _number(int, 0, 1000), "3"),
    "BAD_MEMBER_STRIKES": _Key("bad_member_strikes", _number(int, 1, 1000), "3"),
}


def _cross_check(settings: ClusterSettings) -> None:
    ports = {
        "AWC_API_PORT": settings.api_port,
        "AWC_ETCD_CLIENT_PORT": settings.etcd_client_port,
        "AWC_ETCD_PEER_PORT": settings.etcd_peer_port,
        "AWC_EXPORTER_PORT": settings.exporter_port,
        "AWC_PING_PORT": settings.ping_port,
        "AWC_ENROLL_PORT": settings.enroll_port if settings.security == MTLS else 0,
    }
    if len(set(ports.values())) != len(ports):
        used = ", ".join(f"{name}={port}" for name, port in ports.items() if port)
        raise SettingsError(f"{used}: give each its own port")
    for name, directory in (("AWC_STATE_DIR", settings.state_dir), ("AWC_PKI_DIR", settings.pki_dir)):
        if directory == settings.data_dir or settings.data_dir in directory.parents:
            raise SettingsError(
                f"{name}={directory} lies in AWC_DATA_DIR, so both would be lost together: "
                "choose another directory"
            )
    _check_prometheus(settings)
    if settings.exporter_tls and settings.security != MTLS:
        raise SettingsError(
            f"AWC_EXPORTER_TLS=1 needs the certificates of AWC_SECURITY={MTLS}: set it to 0, or change that"
        )
    if settings.security == MTLS:
        _check_name(settings.host)
    elif not is_loopback(settings.address):
        raise SettingsError(
            f"AWC_ADDRESS={settings.address} is not a loopback address, and AWC_SECURITY={INSECURE_LOOPBACK} "
            f"serves without encryption: use an address of 127.0.0.0/8 or ::1, or AWC_SECURITY={MTLS}"
        )


def _check_prometheus(settings: ClusterSettings) -> None:
    host = parse_host_port(settings.prometheus_url.removeprefix("http://")).host
    if host != settings.address and not is_loopback(host):
        raise SettingsError(
            f"AWC_PROMETHEUS_URL={settings.prometheus_url} is neither a loopback address nor AWC_ADDRESS: "
            "what decides the health of cards would come unencrypted over the network; use this "
            "host's own Prometheus"
        )


def _check_name(host: str) -> None:
    """The host's name goes into its certificate, which takes less than a host name may be."""
    try:
        checked_name(host)
    except PkiError as error:
        raise SettingsError(f"AWC_HOST: {error}") from None
