"""What the demo looks at from outside: the cluster's API, the dataplane's status, the status file, logs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import grpc
from akv.v1 import cluster_pb2, cluster_pb2_grpc, dataplane_pb2, dataplane_pb2_grpc, plan_pb2

_CALL_SECONDS = 2.0
_SAMPLE = re.compile(r'^(?P<name>[a-z_]+)(?:\{(?:[a-z]+)="(?P<label>[^"]*)"\})? (?P<value>\S+)$')


class ClusterView:
    """The cluster as the first of its hosts that answers tells it."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self._channels = [grpc.insecure_channel(endpoint) for endpoint in endpoints]
        self._stubs = [cluster_pb2_grpc.ClusterServiceStub(channel) for channel in self._channels]

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()

    def host_answers(self, position: int) -> bool:
        """The API of that host (from 0) is served, in a cluster or not."""
        try:
            self._stubs[position].GetMembers(cluster_pb2.GetMembersRequest(), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            return bool(error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
        return True

    def get(self) -> cluster_pb2.GetClusterResponse | None:
        """The cluster now; None while no host tells it."""
        for stub in self._stubs:
            try:
                answer: cluster_pb2.GetClusterResponse = stub.GetCluster(
                    cluster_pb2.GetClusterRequest(), timeout=_CALL_SECONDS
                )
            except grpc.RpcError:
                continue
            return answer
        return None

    def cards(self) -> dict[str, cluster_pb2.ClusterCard]:
        """Cards that the cluster has now, by serial; empty while it does not answer."""
        answer = self.get()
        return (
            {} if answer is None else {card.xdp_serial: card for host in answer.hosts for card in host.cards}
        )


class DataplaneView:
    """The dataplane as its gRPC service tells it."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._stub = dataplane_pb2_grpc.DataplaneServiceStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def plan(self) -> plan_pb2.Plan | None:
        """The plan that is served; None before the first, or without an answer."""
        try:
            answer: dataplane_pb2.GetPlanResponse = self._stub.GetPlan(
                dataplane_pb2.GetPlanRequest(), timeout=_CALL_SECONDS
            )
        except grpc.RpcError:
            return None
        return answer.plan if answer.HasField("plan") else None

    def status(self) -> dataplane_pb2.GetStatusResponse | None:
        """Cards and counters; None without an answer."""
        try:
            answer: dataplane_pb2.GetStatusResponse = self._stub.GetStatus(
                dataplane_pb2.GetStatusRequest(), timeout=_CALL_SECONDS
            )
        except grpc.RpcError:
            return None
        return answer

    def card(self, serial: str) -> dataplane_pb2.CardStatus | None:
        """What the dataplane sees of one card."""
        status = self.status()
        return None if status is None else next((c for c in status.cards if c.serial == serial), None)

    def active(self) -> tuple[str, ...]:
        """Serials of the cards in use, sorted."""
        status = self.status()
        return () if status is None else tuple(sorted(card.serial for card in status.cards if card.active))


def routable(plan: plan_pb2.Plan | None) -> frozenset[str]:
    """Serials of the cards that the plan routes to."""
    return frozenset() if plan is None else frozenset(e.card.serial for e in plan.slots if e.routable)


def read_status_file(path: Path) -> Mapping[tuple[str, str], float]:
    """Samples of the gateway's status file by (name, label value); empty before it is written."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    samples = (_SAMPLE.match(line) for line in text.splitlines())
    return {(m["name"], m["label"] or ""): float(m["value"]) for m in samples if m is not None}


def count_in_log(text: str, sentence: str) -> int:
    """Lines of a log that have the sentence."""
    return sum(sentence in line for line in text.splitlines())
