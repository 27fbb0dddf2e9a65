"""Fabrics between nodes: fabric-test, fabric-scan."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli import render_fabric
from clustercli.call import REFUSED, CallError
from clustercli.plain import plain
from clustercli.printable import printable
from clustercli.session import READ_SECONDS, Session, session_of

SCAN_SECONDS = 210.0
# On top of a test's own length: its tools may have to be installed first.
TEST_EXTRA_SECONDS = 330.0

Document = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("fabric-test")(fabric_test)
    app.command("fabric-scan")(fabric_scan)


def fabric_test(
    context: typer.Context,
    client: Annotated[str, typer.Argument(help="The node that sends.")],
    server: Annotated[str, typer.Argument(help="The node that receives.")],
    seconds: Annotated[int, typer.Option("--seconds", min=1, max=600, help="Length of each test.")] = 5,
    message_bytes: Annotated[
        int, typer.Option("--message-bytes", min=1, max=16 << 20, help="Size of one message.")
    ] = 1 << 20,
    fabric: Annotated[str, typer.Option("--fabric", help="Only the adapters on this fabric.")] = "",
    tcp: Annotated[
        bool, typer.Option("--tcp", help="The network of the nodes' addresses, over TCP, and no adapter.")
    ] = False,
) -> None:
    """Measure the bandwidth between two nodes, rail by rail, and grade each against its link's rate.

    Exit code 1 unless every rail reaches 90 % of its link's rate.
    """
    session = session_of(context)
    if tcp and fabric:
        raise typer.BadParameter("--tcp tests no fabric's adapters: leave out --fabric, or --tcp")
    rails = [fleet_pb2.Rail()] if tcp else _pair(session, client, server, fabric)
    results = []
    for number, rail in enumerate(rails, start=1):
        typer.echo(
            printable(f"rail {number} of {len(rails)}: {render_fabric.rail_text(plain(rail))}"), err=True
        )
        request = fleet_pb2.TestRailRequest(
            client_node=client, server_node=server, rail=rail, seconds=seconds, message_bytes=message_bytes
        )
        results.append(_measure(session, request))
        typer.echo(printable(f"  {render_fabric.result_text(results[-1])}"), err=True)
    document = {"client_node": client, "server_node": server, "seconds": seconds, "rails": results}
    session.show(document, render_fabric.rails_table)
    if not all(result["grade"] == "good" or (tcp and not result["error"]) for result in results):
        raise typer.Exit(REFUSED)


def _pair(session: Session, client: str, server: str, fabric: str) -> list[fleet_pb2.Rail]:
    request = fleet_pb2.PairRailsRequest(client_node=client, server_node=server, fabric=fabric)
    answer = session.call("fabric-test", lambda stub: stub.PairRails, request, READ_SECONDS, FleetServiceStub)
    return list(answer.rails)


def _measure(session: Session, request: fleet_pb2.TestRailRequest) -> Document:
    """One rail with its result; that it could not be tested is a result too. Raises CallError."""
    rail = plain(request.rail)
    problem = rail.pop("problem")
    answer = fleet_pb2.TestRailResponse(rate_gbps=request.rail.rate_gbps, gid_index=-1)
    if not problem:
        seconds = request.seconds + TEST_EXTRA_SECONDS
        try:
            answer = session.call(
                "fabric-test", lambda stub: stub.TestRail, request, seconds, FleetServiceStub
            )
        except CallError as error:
            if error.exit_code != REFUSED:
                raise
            problem = str(error).partition(": ")[2] or str(error)
    return {**rail, **plain(answer), "error": problem}


def fabric_scan(
    context: typer.Context,
    node: Annotated[
        str, typer.Argument(help="The node that looks now; none = the leader's own maps of every fabric.")
    ] = "",
    hca: Annotated[
        str, typer.Argument(help="Its adapter's port, ADAPTER or ADAPTER/PORT; none = the first active one.")
    ] = "",
    fabric: Annotated[str, typer.Option("--fabric", help="The leader's own map of this fabric.")] = "",
) -> None:
    """Map an InfiniBand or RoCE fabric as one node's port sees it.

    Exit code 1 when a node can't tell, and without NODE when a fabric's last map failed.
    """
    session = session_of(context)
    if node and fabric:
        raise typer.BadParameter("--fabric shows a map that the leader has: leave it out, or NODE")
    if not node:
        _show_maps(session, fabric)
        return
    typer.echo(f"asking {node}; a large fabric takes minutes", err=True)
    name, port = _port(hca)
    wanted = fleet_pb2.ScanFabricRequest(node_id=node, hca=name, port=port)
    answer = session.call("fabric-scan", lambda stub: stub.ScanFabric, wanted, SCAN_SECONDS, FleetServiceStub)
    session.show({"node_id": node, **plain(answer)}, render_fabric.scan_text)


def _show_maps(session: Session, fabric: str) -> None:
    """The leader's maps, or one of them in full."""
    request = fleet_pb2.ListFabricMapsRequest(fabric=fabric)
    answer = session.call(
        "fabric-scan", lambda stub: stub.ListFabricMaps, request, READ_SECONDS, FleetServiceStub
    )
    session.show(plain(answer), render_fabric.whole_map if fabric else render_fabric.maps_table)
    if any(found.error for found in answer.maps):
        raise typer.Exit(REFUSED)


def _port(text: str) -> tuple[str, int]:
    """Adapter and port number; 0 = the service's choice."""
    name, slash, number = text.partition("/")
    if slash and not (
        len(number) <= 3 and number.isascii() and number.isdecimal() and 1 <= int(number) <= 255
    ):
        raise typer.BadParameter(f"{text!r} is not ADAPTER/PORT, as in mlx5_0/1")
    return name, int(number) if slash else 0
