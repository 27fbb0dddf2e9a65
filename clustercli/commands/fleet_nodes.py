"""What is done to one node of the fleet: weights, forget-node."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli import render_fleet
from clustercli.call import REFUSED
from clustercli.commands.fleet import Name
from clustercli.plain import plain
from clustercli.session import CHANGE_SECONDS, READ_SECONDS, Session, session_of


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("weights")(weights)
    app.command("forget-node")(forget_node)


def weights(
    context: typer.Context,
    name: Name,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", help="Propose to remove this path; may be repeated.")
    ] = None,
) -> None:
    """Show the weights on a node, or propose to remove some; the node checks each path again.

    Exit code 1 when it keeps one of them.
    """
    session = session_of(context)
    if not remove:
        session.show(_there(session, name), render_fleet.weights_table)
        return
    request = fleet_pb2.RemoveNodeWeightsRequest(node_id=name, paths=remove)
    answer = session.call(
        "weights", lambda stub: stub.RemoveNodeWeights, request, CHANGE_SECONDS, FleetServiceStub
    )
    session.show({"node_id": name, **plain(answer)}, render_fleet.removed_text)
    if answer.kept:
        raise typer.Exit(REFUSED)


def _there(session: Session, name: str) -> dict[str, Any]:
    request = fleet_pb2.GetNodeRequest(node_id=name)
    answer = session.call("weights", lambda stub: stub.GetNode, request, READ_SECONDS, FleetServiceStub)
    return {"node_id": name, **plain(answer.node.weights)}


def forget_node(context: typer.Context, name: Name) -> None:
    """Forget a node that will not come back; refused while its agent is connected."""
    session = session_of(context)
    request = fleet_pb2.ForgetNodeRequest(node_id=name)
    session.call("forget-node", lambda stub: stub.ForgetNode, request, CHANGE_SECONDS, FleetServiceStub)
    session.show({"node_id": name}, lambda d: f"Node {d['node_id']} is forgotten")
