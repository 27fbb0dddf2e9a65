"""Settings of the cluster service: `awide-cluster.env`, `adpcli_compat.env` and the process environment."""

from __future__ import annotations

import difflib
import re
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.base.addresses import AddressError, HostPort, canonical_address, is_loopback
from controlplane.base.settings import Settings, SettingsError, read_env_file

MAIN_FILE = "awide-cluster.env"
SERIALS_FILE = "adpcli_compat.env"
INSECURE_LOOPBACK = "insecure-loopback"
KEYS = frozenset(
    {
        "AWC_HOST",
        "AWC_ADDRESS",
        "AWC_API_PORT",
        "AWC_ETCD_CLIENT_PORT",
        "AWC_ETCD_PEER_PORT",
        "AWC_DATA_DIR",
        "AWC_LOG_DIR",
        "AWC_STATE_DIR",
        "AWC_ETCD_BINARY",
        "AWC_CARD_CLI",
        "AWC_CYCLE_SECONDS",
        "AWC_EXPORTER_PORT",
        "AWC_WITNESS",
        "AWC_SECURITY",
        "AWC_XDP_SERIALS",
        "LEADER_WARMUP_CYCLES",
        "BAD_MEMBER_STRIKES",
    }
)

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
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
    card_cli: tuple[str, ...]
    cycle_seconds: float
    exporter_port: int
    warmup_cycles: int
    bad_member_strikes: int
    witness: bool
    security: str
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
    def client_url(self) -> str:
        """URL at which this host's etcd serves clients."""
        return HostPort(self.address, self.etcd_client_port).url("http")

    @property
    def peer_url(self) -> str:
        """URL at which this host's etcd serves its peers."""
        return HostPort(self.address, self.etcd_peer_port).url("http")


def load_settings(config_dir: Path, environment: Mapping[str, str]) -> ClusterSettings:
    """Read and check all settings; the environment wins over the files. Raises SettingsError.

    A missing file has no settings, since every key but AWC_SECURITY has a default; a missing directory is an
    error, since it is most likely a misspelt --config-dir.
    """
    if not config_dir.is_dir():
        raise SettingsError(f"--config-dir {config_dir} is not a directory: create it, or correct the path")
    files = [path for name in (MAIN_FILE, SERIALS_FILE) if (path := config_dir / name).exists()]
    for path in files:
        _refuse_unknown(path)
    known = {key: environment[key] for key in KEYS if key in environment}
    settings = _build(Settings.load(files, known), config_dir)
    _cross_check(settings)
    return settings


def _refuse_unknown(path: Path) -> None:
    for key in read_env_file(path):
        if key not in KEYS:
            near = difflib.get_close_matches(key, sorted(KEYS), n=1)
            hint = f"did you mean {near[0]}?" if near else "remove the line"
            raise SettingsError(f"{path}: {key} is not a setting of awide-cluster; {hint}")


def _build(values: Settings, config_dir: Path) -> ClusterSettings:
    return ClusterSettings(
        host=_host(values.text("AWC_HOST", socket.gethostname())),
        address=_address(values.text("AWC_ADDRESS", "127.0.0.1")),
        api_port=values.integer("AWC_API_PORT", 5000, low=1, high=65535),
        etcd_client_port=values.integer("AWC_ETCD_CLIENT_PORT", 2379, low=1, high=65535),
        etcd_peer_port=values.integer("AWC_ETCD_PEER_PORT", 2380, low=1, high=65535),
        data_dir=_directory("AWC_DATA_DIR", values.text("AWC_DATA_DIR", "/var/lib/etcd")),
        log_dir=_directory("AWC_LOG_DIR", values.text("AWC_LOG_DIR", "/var/log/adp")),
        state_dir=_directory(
            "AWC_STATE_DIR", values.text("AWC_STATE_DIR", str(config_dir.absolute() / "state"))
        ),
        etcd_binary=_binary(values.optional("AWC_ETCD_BINARY")),
        card_cli=_command(values.text("AWC_CARD_CLI", "akv-softcard list --json")),
        cycle_seconds=values.seconds("AWC_CYCLE_SECONDS", 6.0, low=0.1, high=3600),
        exporter_port=values.integer("AWC_EXPORTER_PORT", 7891, low=1, high=65535),
        warmup_cycles=values.integer("LEADER_WARMUP_CYCLES", 3, low=0, high=1000),
        bad_member_strikes=values.integer("BAD_MEMBER_STRIKES", 3, low=1, high=1000),
        witness=values.flag("AWC_WITNESS", default=False),
        security=_security(values.optional("AWC_SECURITY")),
        xdp_serials=_serials(values.text("AWC_XDP_SERIALS", "")),
    )


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise SettingsError(f"AWC_HOST={text!r} is not a host name: use letters, digits, '.', '-' and '_'")
    return text


def _address(text: str) -> str:
    try:
        return canonical_address(text)
    except AddressError as error:
        raise SettingsError(
            f"AWC_ADDRESS: {error}; write the literal address of this host, not a name"
        ) from None


def _directory(key: str, text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(f"{key}={text!r} is a relative path: write it from the root, as /var/lib/etcd")
    return path


def _binary(text: str | None) -> Path | None:
    return None if text is None else _directory("AWC_ETCD_BINARY", text)


def _command(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(
            f"AWC_CARD_CLI={text!r} is not a command line ({error}): balance its quotes"
        ) from None


def _security(text: str | None) -> str:
    if text != INSECURE_LOOPBACK:
        said = "is not set" if text is None else f"={text!r} is not known"
        raise SettingsError(
            f"AWC_SECURITY{said}: this version serves without encryption, on loopback only, and wants to be "
            f"told so by name: AWC_SECURITY={INSECURE_LOOPBACK}"
        )
    return text


def _serials(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        device, colon, serial = part.partition(":")
        if not colon or not _DEVICE.fullmatch(device) or not _SERIAL.fullmatch(serial):
            raise SettingsError(f"AWC_XDP_SERIALS: {part!r} is not DEVICE:SERIAL, as in xdp0:L0P0")
        if device in pairs or serial in pairs.values():
            raise SettingsError(
                f"AWC_XDP_SERIALS: {part!r} repeats a device or a serial: keep one of the entries"
            )
        pairs[device] = serial
    return pairs


def _cross_check(settings: ClusterSettings) -> None:
    ports = (settings.api_port, settings.etcd_client_port, settings.etcd_peer_port, settings.exporter_port)
    if len(set(ports)) != len(ports):
        raise SettingsError(
            "AWC_API_PORT, AWC_ETCD_CLIENT_PORT, AWC_ETCD_PEER_PORT and AWC_EXPORTER_PORT are "
            f"{', '.join(map(str, ports))}: give each its own port"
        )
    if not is_loopback(settings.address):
        raise SettingsError(
            f"AWC_ADDRESS={settings.address} is not a loopback address, and AWC_SECURITY={INSECURE_LOOPBACK} "
            "serves without encryption: use an address of 127.0.0.0/8 or ::1"
        )
    if settings.state_dir == settings.data_dir or settings.data_dir in settings.state_dir.parents:
        raise SettingsError(
            f"AWC_STATE_DIR={settings.state_dir} lies in AWC_DATA_DIR, so both would be lost together: "
            "choose another directory"
        )
