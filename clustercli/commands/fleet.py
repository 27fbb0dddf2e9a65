"""Nodes of the fleet: nodes, node, logs, drain."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from typing import Annotated, Any

import typer
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli import progress, render_fleet
from clustercli.plain import plain
from clustercli.printable import printable_line
from clustercli.session import (
    CHANGE_SECONDS,
    READ_SECONDS,
    Output,
    Session,
    Watch,
    WatchEvery,
    WatchFlag,
    session_of,
)

FOLLOW_SECONDS = 1.0
LOGS_SECONDS = 30.0
# Characters; an agent reads 256 KiB, or 5,000 lines, for one answer.
FULL_ANSWER = 64 << 10
Name = Annotated[str, typer.Argument(help="Name of the node.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]
WaitSeconds = Annotated[float, typer.Option("--for", min=1, max=604800, help="Seconds to wait at most.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("nodes")(nodes)
    app.command("node")(node)
    app.command("logs")(logs)
    app.command("drain")(drain)


def nodes(context: typer.Context, watch: WatchFlag = False, every: WatchEvery = 2.0) -> None:
    """Show every node of the fleet."""
    session = session_of(context)

    def ask() -> dict[str, Any]:
        request = fleet_pb2.ListNodesRequest()
        return plain(
            session.call("nodes", lambda stub: stub.ListNodes, request, READ_SECONDS, FleetServiceStub)
        )

    session.present(ask, render_fleet.nodes_table, Watch(watch, every))


def node(context: typer.Context, name: Name, watch: WatchFlag = False, every: WatchEvery = 2.0) -> None:
    """Show all that is known of one node."""
    session = session_of(context)

    def ask() -> dict[str, Any]:
        request = fleet_pb2.GetNodeRequest(node_id=name)
        return plain(session.call("node", lambda stub: stub.GetNode, request, READ_SECONDS, FleetServiceStub))

    session.present(ask, render_fleet.node_table, Watch(watch, every))


def logs(
    context: typer.Context,
    name: Name,
    source: Annotated[str, typer.Argument(help="`agent`, or a shard's id.")] = "agent",
    lines: Annotated[int, typer.Option("--lines", min=1, max=5000, help="The newest lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is written.")] = False,
) -> None:
    """Show one of a node's logs, asked of its agent."""
    session = session_of(context)
    document = _logs(session, fleet_pb2.GetLogsRequest(node_id=name, source=source, lines=lines))
    _print_lines(session, document, follow=follow)
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(session, name, source, document["cursor"])


def _follow(session: Session, name: str, source: str, cursor: str) -> None:
    """Until interrupted; while the node or the leader is away it waits, and loses nothing."""
    asker = progress.Asker()
    behind = False
    while True:
        time.sleep(0.0 if behind else FOLLOW_SECONDS)
        request = fleet_pb2.GetLogsRequest(node_id=name, source=source, lines=5000, cursor=cursor)
        document = asker.ask(partial(_logs, session, request))
        if document is not None:
            cursor = document["cursor"]
            _print_lines(session, document, follow=True)
        # More than fits into one answer was written, or will be: what waits may be rotated away.
        behind = document is not None and _size(document["lines"]) >= FULL_ANSWER


def _size(lines: list[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _logs(session: Session, request: fleet_pb2.GetLogsRequest) -> dict[str, Any]:
    return plain(session.call("logs", lambda stub: stub.GetLogs, request, LOGS_SECONDS, FleetServiceStub))


def _print_lines(session: Session, document: dict[str, Any], *, follow: bool) -> None:
    """As JSON one document, and one a line with --follow."""
    if session.output is Output.TABLE:
        for line in document["lines"]:
            typer.echo(printable_line(line))
    elif not follow:
        session.show(document, str)
    elif document["lines"]:
        typer.echo(json.dumps(document, ensure_ascii=False))


def drain(
    context: typer.Context,
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Give the node back to placement.")] = False,
    wait: Wait = True,
    seconds: WaitSeconds = 1800.0,
) -> None:
    """Place nothing more on a node, and drain what runs there; its replicas go elsewhere."""
    session = session_of(context)
    request = fleet_pb2.DrainNodeRequest(node_id=name, undo=undo)
    answer = session.call("drain", lambda stub: stub.DrainNode, request, CHANGE_SECONDS, FleetServiceStub)
    if wait and not undo:
        progress.follow(
            lambda: _shards_on(session, name), lambda d: not d["shards"], f"drain of {name}", seconds
        )
    document = {"node_id": name, "draining": not undo, "shard_ids": list(answer.shard_ids)}
    session.show(document, lambda d: _drained(d, wait=wait))


def _shards_on(session: Session, name: str) -> dict[str, Any]:
    document = progress.list_shards(session, "")
    there = [shard for shard in document["shards"] if shard["node_id"] == name]
    return {**document, "shards": there, "unplaced": []}


def _drained(document: dict[str, Any], *, wait: bool) -> str:
    name, shards = document["node_id"], ", ".join(document["shard_ids"])
    if not document["draining"]:
        return f"Node {name} takes shards again"
    state = "is empty" if wait or not shards else f"is being emptied of {shards}"
    return f"Node {name} takes no shards and {state}"
