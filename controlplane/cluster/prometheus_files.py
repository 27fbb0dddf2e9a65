"""What awide-cluster writes for monitoring, as pure functions: Prometheus' configuration, its targets, and
whom the host's ping exporter pings.

A host whose records can't be read keeps the targets that it had: unknown is not gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.base.addresses import AddressError, canonical_address
from controlplane.base.credentials import CredentialFiles
from controlplane.base.ping_targets import PingTarget
from controlplane.base.pki import HOST_DNS_NAME
from controlplane.model.cards import ClusterSnapshot, HostRecord

CARD_JOB, PING_JOB = "akv-cards", "akv-ping"
CONFIG_FILE = "prometheus.yml"
CARD_TARGETS, PING_TARGETS = "targets/cards.json", "targets/ping.json"
# One scrape of a host's exporter is a few kilobytes; a broken one must not fill Prometheus.
_BODY_LIMIT, _SAMPLE_LIMIT = "4MB", 5000
_JOBS = {CARD_JOB: CARD_TARGETS, PING_JOB: PING_TARGETS}


@dataclass(frozen=True, slots=True)
class HostTargets:
    """One host to watch: HOST:PORT of its exporters (empty for none), and its data addresses."""

    host: str
    witness: bool
    cards: str
    ping: str
    data_addresses: tuple[str, ...]
    tls: bool = False


def prometheus_config(scrape_seconds: float, tls: CredentialFiles | None = None) -> str:
    """prometheus.yml; its paths are relative to it, so that the directory can be mounted anywhere.

    Only those of `tls` are not: what is shown to, and asked of, exporters that serve HTTPS.
    """
    interval, timeout = round(scrape_seconds * 1000), round(scrape_seconds * 800)
    jobs = "".join(
        f"""
  - job_name: {job}
    body_size_limit: {_BODY_LIMIT}
    sample_limit: {_SAMPLE_LIMIT}
    honor_timestamps: false
    file_sd_configs:
      - files: [{file}]
        refresh_interval: 30s
{_tls_config(tls) if tls is not None else ""}"""
        for job, file in _JOBS.items()
    )
    return f"""# Written by awide-cluster: changes are overwritten. Put rules of your own into rules/*.yml.
global:
  scrape_interval: {interval}ms
  scrape_timeout: {timeout}ms

rule_files: [rules/*.yml]

scrape_configs:{jobs}"""


def _tls_config(files: CredentialFiles) -> str:
    """Which targets are asked over HTTPS stands in their own file; only hosts have this name."""
    return f"""    tls_config:
      ca_file: {json.dumps(str(files.ca))}
      cert_file: {json.dumps(str(files.certificate))}
      key_file: {json.dumps(str(files.key))}
      server_name: {HOST_DNS_NAME}
"""


def host_targets(picture: ClusterSnapshot, before: Iterable[HostTargets]) -> tuple[HostTargets, ...]:
    """The enabled hosts of the picture; `before` is what was written last."""
    doubtful = {record.host for record in picture.unreadable if record.kind in {"node", "card"}}
    disabled = {record.host for record in picture.hosts if not record.enabled}
    kept = {known.host: known for known in before if known.host in doubtful - disabled}
    paths: dict[str, set[str]] = {}
    for card in picture.cards:
        paths.setdefault(card.host, set()).update(path.traddr for path in card.paths)
    read = {
        record.host: _targets(record, paths.get(record.host, set()))
        for record in picture.hosts
        if record.enabled
    }
    return tuple(sorted({**read, **kept}.values(), key=lambda found: found.host))


def _targets(record: HostRecord, card_addresses: set[str]) -> HostTargets:
    addresses = record.addresses
    declared = set(filter(None, map(_literal, addresses.get("data", "").split(","))))
    data = tuple(sorted(declared | card_addresses))
    return HostTargets(
        record.host,
        record.witness,
        addresses.get("exporter", ""),
        addresses.get("ping", ""),
        data,
        tls=addresses.get("metrics_scheme") == "https",
    )


def _literal(text: str) -> str:
    """The address in canonical spelling; a record of another version may hold what is none."""
    try:
        return canonical_address(text.strip())
    except AddressError:
        return ""


def scrape_files(targets: Iterable[HostTargets]) -> Mapping[str, str]:
    """Content of the two targets files for file-based service discovery, by name."""
    listed = list(targets)
    cards = [_group(target, target.cards) for target in listed if target.cards]
    ping = [_group(target, target.ping) for target in listed if target.ping]
    return {CARD_TARGETS: _json(cards), PING_TARGETS: _json(ping)}


def _group(target: HostTargets, endpoint: str) -> dict[str, object]:
    labels = {"host": target.host, "witness": str(int(target.witness))}
    if target.tls:
        labels["__scheme__"] = "https"
    return {"targets": [endpoint], "labels": labels}


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def pings_of(own_host: str, targets: Iterable[HostTargets]) -> tuple[PingTarget, ...]:
    """Every data address of every other host."""
    return tuple(
        PingTarget(target.host, address)
        for target in targets
        if target.host != own_host
        for address in target.data_addresses
    )
