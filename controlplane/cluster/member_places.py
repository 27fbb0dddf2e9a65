"""What a host whose member is gone asks the other hosts: was it removed, and is there a new place?"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.base.request_errors import NotFound, RequestError
from controlplane.cluster import member_client
from controlplane.cluster.membership_file import Membership, PeerHost
from controlplane.cluster.settings import ClusterSettings
from controlplane.cluster.trust import Trust

ALONE = (
    "no other host can replace it: restore the data directory, or stop the service, remove member.json and "
    "create the cluster anew"
)


@dataclass(frozen=True, slots=True)
class PlaceAnswer:
    """One of: a place, the reason why the host is out of the cluster, or what is waited for."""

    place: Membership | None = None
    left: str = ""
    awaited: str = ""


async def ask_for_place(settings: ClusterSettings, trust: Trust, membership: Membership) -> PlaceAnswer:
    """Ask the other hosts, in turn, for a fresh member in place of the old one; the first answer counts."""
    request = member_client.join_request(settings, replaces=membership)
    failures: list[str] = []
    for peer in membership.peers:
        try:
            answer = await member_client.join(trust, peer.api, request)
        except NotFound as error:
            return PlaceAnswer(left=str(error))
        except RequestError as error:
            failures.append(f"{peer.host}: {error}")
            continue
        if answer.accepted:
            return PlaceAnswer(place=place_of(settings, answer, membership.peers))
        return PlaceAnswer(awaited=f"a new place is asked for: {answer.reason}")
    return PlaceAnswer(awaited="; ".join(failures) or ALONE)


async def was_removed(trust: Trust, membership: Membership) -> bool:
    """Whether a quorum of the cluster says that it has no such member; False when nobody can tell.

    A list from memory does not count: it may be older than the member.
    """
    own = f"{membership.member_id:016x}"
    for peer in membership.peers:
        try:
            answer = await member_client.members_of(trust, peer.api)
        except RequestError:
            continue
        if answer.current and answer.cluster_uuid == membership.cluster_uuid:
            return own not in {member.member_id for member in answer.members}
    return False


def place_of(
    settings: ClusterSettings, answer: member_client.Join, peers: tuple[PeerHost, ...]
) -> Membership:
    """Return the place that an accepted join gives."""
    return Membership(
        phase="joining",
        host=settings.host,
        peer_url=settings.peer_url,
        cluster_uuid=answer.cluster_uuid,
        cluster_name=answer.cluster_name,
        initial_cluster=answer.initial_cluster,
        member_id=int(answer.member_id, 16),
        peers=peers,
    )
