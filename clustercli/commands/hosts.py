"""Hosts in and out of the cluster: create_cluster, add_node, remove_node."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from akv.v1 import cluster_pb2

from clustercli.session import CHANGE_SECONDS, session_of


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("create_cluster")(create_cluster)
    app.command("add_node")(add_node)
    app.command("remove_node")(remove_node)


def create_cluster(
    context: typer.Context, name: Annotated[str, typer.Option("--name", help="Name of the new cluster.")]
) -> None:
    """Make the asked host the first member of a new cluster."""
    session = session_of(context)
    request = cluster_pb2.CreateClusterRequest(name=name)
    answer = session.call("create_cluster", lambda stub: stub.CreateCluster, request, CHANGE_SECONDS)
    document = {"cluster_uuid": answer.cluster_uuid, "cluster_name": name}
    if answer.join_token:
        document["join_token"] = answer.join_token
    session.show(document, _created)


def _created(document: dict[str, Any]) -> str:
    text = f"Cluster {document['cluster_name']} is created, uuid {document['cluster_uuid']}"
    if "join_token" in document:
        text += (
            f"\nThe next host joins once, within a day, by\n"
            f"  clustercli add_node -n THIS_HOST --token {document['join_token']}"
        )
    return text


def add_node(
    context: typer.Context,
    node: Annotated[str, typer.Option("-n", "--node", help="A host that is in the cluster, ADDR[:PORT].")],
    token: Annotated[
        str,
        typer.Option(
            envvar="CLUSTERCLI_TOKEN", help="One-time join token, from create_cluster or pki token (mtls)."
        ),
    ] = "",
) -> None:
    """Make the asked host join the cluster that host -n belongs to."""
    session = session_of(context)
    request = cluster_pb2.AddNodeRequest(via_host=node, token=token)
    answer = session.call("add_node", lambda stub: stub.AddNode, request, CHANGE_SECONDS)
    document = {"cluster_uuid": answer.cluster_uuid, "cluster_name": answer.cluster_name}
    session.show(document, lambda d: f"The host is in cluster {d['cluster_name']}, uuid {d['cluster_uuid']}")


def remove_node(
    context: typer.Context,
    node: Annotated[str, typer.Option("-n", "--node", help="Name of the host to take out.")],
    forget_cards: Annotated[
        bool, typer.Option("--forget-cards", help="Also free the slots of its cards; others may move.")
    ] = False,
) -> None:
    """Take a host out of the cluster; any host can be asked."""
    session = session_of(context)
    request = cluster_pb2.RemoveNodeRequest(host=node, forget_cards=forget_cards)
    answer = session.call("remove_node", lambda stub: stub.RemoveNode, request, CHANGE_SECONDS)
    document = {"host": node, "forgotten_serials": list(answer.forgotten_serials)}
    session.show(document, _removed)


def _removed(document: dict[str, Any]) -> str:
    forgotten = ", ".join(document["forgotten_serials"])
    tail = f"; forgotten cards: {forgotten}" if forgotten else "; its cards keep their slots"
    return f"Host {document['host']} is out of the cluster{tail}"
