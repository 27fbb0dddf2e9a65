"""Keeps the files for Prometheus and for the host's ping exporter in line with the cluster's records.

A file is replaced in whole, and only when its content changes. While etcd gives no picture the files stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from controlplane.base.credentials import CredentialFiles
from controlplane.base.logging import get_logger
from controlplane.base.ping_targets import PingTargetsError, encode_targets, ping_targets
from controlplane.base.request_errors import RequestError
from controlplane.base.text_file import write_atomically
from controlplane.cluster.cycles import OnChange
from controlplane.cluster.link import EtcdLink
from controlplane.cluster.prometheus_files import (
    CONFIG_FILE,
    HostTargets,
    host_targets,
    pings_of,
    prometheus_config,
    scrape_files,
)
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.store.errors import StoreError

PING_FILE = "ping-targets.json"

log = get_logger("monitoring")


class Monitoring:
    """One host's monitoring files, below AWC_MONITORING_DIR."""

    def __init__(self, settings: ClusterSettings, supervisor: MemberSupervisor, link: EtcdLink) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._link = link
        self._targets: tuple[HostTargets, ...] = ()
        self._said = OnChange()

    async def cycle(self) -> None:
        """Write what changed. Raises nothing: what can't be written is told once and tried again."""
        membership = self._supervisor.membership
        if membership is None or membership.phase != "member":
            return
        try:
            picture = await self._link.snapshot(membership)
        except (StoreError, RequestError):
            return  # discovery tells it; the files stay
        self._targets = host_targets(picture, self._targets)
        try:
            changed = await asyncio.to_thread(write_changed, self._settings.monitoring_dir, self._files())
        except (OSError, PingTargetsError) as error:
            if self._said.changed(str(error)):
                log.warning("monitoring files not written", reason=str(error), effect="the old ones stay")
            return
        self._said.changed("")
        if changed:
            log.info("monitoring files written", files=changed, hosts=len(self._targets))

    def _files(self) -> Mapping[str, str]:
        own = self._settings.host
        pings = encode_targets(ping_targets(own, pings_of(own, self._targets))).decode()
        settings = self._settings
        tls = CredentialFiles.in_directory(settings.pki_dir) if settings.exporter_tls else None
        config = prometheus_config(settings.scrape_seconds, tls)
        return {**scrape_files(self._targets), PING_FILE: pings, CONFIG_FILE: config}


def write_changed(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Replace the files whose content differs, readable by all (they hold no secret); their names.

    Raises OSError. The directory itself is not made: without it, monitoring is not installed here.
    """
    if not directory.is_dir():
        raise FileNotFoundError(
            f"AWC_MONITORING_DIR={directory} is not a directory: create it, or name the one that Prometheus "
            "reads"
        )
    changed = []
    for name, content in files.items():
        path = directory / name
        if _content(path) == content.encode():
            continue
        path.parent.mkdir(exist_ok=True, mode=0o755)
        write_atomically(path, content, 0o644)
        changed.append(name)
    return changed


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
