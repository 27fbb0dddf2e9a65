"""The names whose certificates are refused, as the cluster's records say; read anew in each cycle."""

from __future__ import annotations

from controlplane.base.logging import get_logger
from controlplane.base.request_errors import RequestError
from controlplane.cluster.link import EtcdLink
from controlplane.store.errors import StoreError
from controlplane.store.pki_records import read_names

log = get_logger("revocations")


class Revocations:
    """A set of names. While etcd does not answer, what was read last holds."""

    def __init__(self, link: EtcdLink) -> None:
        self._link = link
        self.names: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.names

    async def cycle(self) -> None:
        """Read the names. Raises nothing of etcd's; a host in no cluster knows of none."""
        try:
            records = await read_names(self._link.client)
        except (StoreError, RequestError):
            return
        names = frozenset(record.name for record in records if record.revoked)
        if names != self.names:
            log.info("revoked names", names=sorted(names))
        self.names = names
