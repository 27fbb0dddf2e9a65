"""The service's connection to its cluster's etcd; exists while the host has a place in a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.base.request_errors import RequestError, Unavailable
from controlplane.cluster.etcd_wal import MemberIds
from controlplane.cluster.membership_file import Membership
from controlplane.model.cards import ClusterSnapshot
from controlplane.store.client import EtcdClient
from controlplane.store.endpoints import CredentialsSource, canonical_endpoint
from controlplane.store.errors import StoreError
from controlplane.store.membership import Member, MemberStatus, member_status
from controlplane.store.snapshot import read_snapshot

CALL_SECONDS = 1.0
PROBE_SECONDS = 0.5
NO_CLUSTER = "this host is in no cluster: run clustercli create_cluster on the first host, add_node on others"


class EtcdLink:
    """Owns the client. The host's own member is asked first, the other members when it is away."""

    def __init__(self, own_url: str, credentials: CredentialsSource | None = None) -> None:
        self._own_url = own_url
        self._credentials = credentials
        self._client: EtcdClient | None = None
        self._own: EtcdClient | None = None
        self._uuid = ""

    @property
    def client(self) -> EtcdClient:
        """The client of all members. Raises RequestError while the host is in no cluster."""
        if self._client is None:
            raise RequestError(NO_CLUSTER)
        return self._client

    async def follow(self, membership: Membership | None) -> None:
        """Connect to the cluster of `membership`, or to none."""
        uuid = membership.cluster_uuid if membership is not None else ""
        if uuid == self._uuid:
            return
        await self._drop()
        if membership is not None:
            peers = [peer.client_url for peer in membership.peers if peer.client_url]
            self._client = EtcdClient(
                [self._own_url, *peers], call_seconds=CALL_SECONDS, credentials=self._credentials
            )
        self._uuid = uuid

    def note_members(self, members: Iterable[Member]) -> None:
        """Use the members that etcd lists from now on."""
        urls = [url for member in members for url in member.client_urls[:1]]
        wanted = list(dict.fromkeys(canonical_endpoint(url) for url in [self._own_url, *urls]))
        if self._client is not None and set(wanted) != set(self._client.endpoints):
            self._client.set_endpoints(wanted)

    async def snapshot(self, membership: Membership, seconds: float | None = None) -> ClusterSnapshot:
        """Read the cluster's records; they must be of the cluster that the host belongs to.

        Raises Unavailable (etcd's silence included, as its StoreError) when there is no picture to act on.
        """
        picture = await read_snapshot(self.client, seconds=seconds)
        config = picture.config
        if config is None or config.uuid != membership.cluster_uuid:
            found = "no cluster configuration" if config is None else f"cluster {config.uuid}"
            raise Unavailable(
                f"etcd holds {found}, not cluster {membership.cluster_uuid}; nothing is written to it"
            )
        return picture

    async def leads_raft(self) -> bool:
        """Whether the host's own member is etcd's raft leader now; False when it does not answer.

        A host in no cluster is not asked: with `mtls` it has no certificate to ask with.
        """
        if self._client is None:
            return False
        status = await self._own_status()
        return status is not None and status.leader_id == status.member_id

    async def probe_own(self) -> MemberIds | None:
        """Ask the host's own member who it is; None when it does not answer, or knows no leader."""
        status = await self._own_status()
        return None if status is None else MemberIds(status.member_id, status.cluster_id)

    async def _own_status(self) -> MemberStatus | None:
        if self._own is None:
            self._own = EtcdClient([self._own_url], credentials=self._credentials)
        try:
            return await member_status(self._own, self._own.endpoints[0], seconds=PROBE_SECONDS)
        except StoreError:
            return None

    async def close(self) -> None:
        """Close all connections."""
        await self._drop()
        if self._own is not None:
            await self._own.close()
            self._own = None

    async def _drop(self) -> None:
        client, self._client, self._uuid = self._client, None, ""
        if client is not None:
            await client.close()
