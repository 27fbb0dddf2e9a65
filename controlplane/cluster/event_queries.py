"""ListEvents: the cluster's list of events as any host reads it from etcd."""

from __future__ import annotations

import asyncio

from akv.v1 import cluster_pb2 as pb

from controlplane.base.backoff import Deadline
from controlplane.base.request_errors import InvalidRequest, RequestError, Unavailable
from controlplane.cluster.link import NO_CLUSTER, EtcdLink
from controlplane.cluster.supervisor import MemberSupervisor
from controlplane.model.events import ClusterEvent
from controlplane.store.errors import StoreError
from controlplane.store.events import read_events

WAIT_LIMIT_SECONDS = 30.0
POLL_SECONDS = 0.5
# Longer than an election of etcd's takes.
READ_SECONDS = 3.0


class EventQueries:
    """Reads events for one host's API."""

    def __init__(self, supervisor: MemberSupervisor, link: EtcdLink) -> None:
        self._supervisor = supervisor
        self._link = link

    async def list_events(self, request: pb.ListEventsRequest) -> pb.ListEventsResponse:
        """Events after a number, the newest `limit` of them; with `wait_seconds` it waits for one."""
        if not 0 <= request.wait_seconds <= WAIT_LIMIT_SECONDS:
            raise InvalidRequest(f"wait_seconds {request.wait_seconds:g} is not in 0..{WAIT_LIMIT_SECONDS:g}")
        membership = self._supervisor.membership
        if membership is None:
            raise RequestError(NO_CLUSTER)
        deadline = Deadline(request.wait_seconds)
        while True:
            try:
                events = await read_events(self._link.client, seconds=READ_SECONDS)
            except StoreError as error:
                raise Unavailable(f"the events can't be read: etcd: {error}") from error
            news = [event for event in events if event.number > request.after]
            if news or deadline.expired:
                break
            await asyncio.sleep(min(POLL_SECONDS, deadline.remaining()))
        newest = news[-request.limit :] if request.limit else news
        return pb.ListEventsResponse(cluster_uuid=membership.cluster_uuid, events=map(_event, newest))


def _event(event: ClusterEvent) -> pb.ClusterEvent:
    return pb.ClusterEvent(
        number=event.number,
        time=event.note.time,
        host=event.host,
        kind=event.note.kind,
        subject=event.note.subject,
        text=event.note.text,
    )
