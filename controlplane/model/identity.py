"""Is it our cluster that answers?

A wiped or restored host must not take cards away (DESIGN.md, "Records in etcd").
"""

from __future__ import annotations

from controlplane.base.card_names import is_uuid
from controlplane.model.cards import ClusterSnapshot


class ClusterIdentity:
    """The pinned cluster and the newest revision that was seen of it.

    `uuid` is None until a cluster has answered for the first time; from then on it is the only one that
    counts. The revision is kept for the life of the process only, so that a restart is the way out after a
    restored backup.
    """

    def __init__(self, uuid: str | None) -> None:
        self.uuid = uuid
        self.revision = 0

    def admit(self, snapshot: ClusterSnapshot) -> str | None:
        """Take the snapshot as an answer of the pinned cluster, or say why it is none."""
        why = self._refusal(snapshot)
        if why is None and snapshot.config is not None:
            self.uuid = snapshot.config.uuid
            self.revision = snapshot.revision
        return why

    def _refusal(self, snapshot: ClusterSnapshot) -> str | None:
        if snapshot.config is None or not snapshot.config.uuid:
            return "its etcd has no readable cluster configuration (a new or a wiped host)"
        why = self.refuses_uuid(snapshot.config.uuid)
        if why is None and snapshot.revision < self.revision:
            return f"its revision {snapshot.revision} is behind {self.revision}, which was seen before"
        return why

    def refuses_uuid(self, uuid: str) -> str | None:
        """Why a host that says it belongs to cluster `uuid` is not asked; None when it is ours."""
        if not uuid:
            return "it belongs to no cluster"
        if not is_uuid(uuid) or uuid != uuid.lower():
            return f"its cluster {uuid[:80]!r} has no UUID as its identity"
        if self.uuid is not None and uuid != self.uuid:
            return f"it belongs to cluster {uuid}, not to {self.uuid} (accept_cluster_uuid would move there)"
        return None
