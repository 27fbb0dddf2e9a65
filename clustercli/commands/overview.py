"""The cluster and its etcd members at a glance: get_cluster, get_members."""

from __future__ import annotations

from typing import Any

import typer
from akv.v1 import cluster_pb2

from clustercli import render
from clustercli.session import READ_SECONDS, Watch, WatchEvery, WatchFlag, session_of


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("get_cluster")(get_cluster)
    app.command("get_members")(get_members)


def get_cluster(context: typer.Context, watch: WatchFlag = False, every: WatchEvery = 2.0) -> None:
    """Show hosts, cards, health and quorum."""
    session = session_of(context)

    def ask() -> dict[str, Any]:
        request = cluster_pb2.GetClusterRequest()
        answer = session.call("get_cluster", lambda stub: stub.GetCluster, request, READ_SECONDS)
        return render.cluster_document(answer)

    session.present(ask, render.cluster_table, Watch(watch, every))


def get_members(context: typer.Context, watch: WatchFlag = False, every: WatchEvery = 2.0) -> None:
    """Show the etcd members."""
    session = session_of(context)

    def ask() -> dict[str, Any]:
        request = cluster_pb2.GetMembersRequest()
        answer = session.call("get_members", lambda stub: stub.GetMembers, request, READ_SECONDS)
        return render.members_document(answer)

    session.present(ask, render.members_table, Watch(watch, every))
