"""What every node should have installed: provision."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from akv.v1 import agent_pb2, fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli import progress, render_fleet
from clustercli.call import REFUSED
from clustercli.commands.fleet import Wait, WaitSeconds
from clustercli.plain import plain
from clustercli.session import CHANGE_SECONDS, READ_SECONDS, Session, session_of

# An installation that failed before is begun anew, which its node tells within two heartbeats.
STALE_SECONDS = 15.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("provision")(provision)


def provision(
    context: typer.Context,
    engines: Annotated[
        list[str] | None, typer.Argument(help="ENGINE=VERSION, or ENGINE=VERSION/VARIANT; none = show.")
    ] = None,
    nothing: Annotated[bool, typer.Option("--nothing", help="Want no engine on any node.")] = False,
    wait: Wait = False,
    seconds: WaitSeconds = 3600.0,
) -> None:
    """Set what every node should have installed, or show how far each node is.

    With --wait the exit code is 1 when a connected node has not got all that it can install, or none of them
    can install an engine.
    """
    session = session_of(context)
    wanted = [_engine(text) for text in engines or ()]
    if nothing and wanted:
        raise typer.BadParameter("--nothing names no engines: leave them out, or the option")
    request = fleet_pb2.SetEnginesRequest(engines=wanted, show=not wanted and not nothing)
    document = _call(session, request, CHANGE_SECONDS)
    lacking: list[str] = []
    if wait:
        document = _follow(session, seconds)
        lacking = _lacking(document, document.pop("connected"))
    session.show(document, render_fleet.provision_table)
    for problem in lacking:
        typer.echo(f"clustercli: provision: {problem}", err=True)
    if lacking:
        raise typer.Exit(REFUSED)


def _engine(text: str) -> agent_pb2.EngineWant:
    name, equals, rest = text.partition("=")
    version, _, variant = rest.partition("/")
    if not name or not equals or not version:
        raise typer.BadParameter(f"{text!r} is not ENGINE=VERSION, as in vllm=0.11.0")
    return agent_pb2.EngineWant(engine=name, version=version, variant=variant)


def _call(session: Session, request: fleet_pb2.SetEnginesRequest, seconds: float) -> dict[str, Any]:
    return plain(session.call("provision", lambda stub: stub.SetEngines, request, seconds, FleetServiceStub))


def _ask(session: Session) -> dict[str, Any]:
    """How far each node is, and in `connected` which of them can tell."""
    document = _call(session, fleet_pb2.SetEnginesRequest(show=True), READ_SECONDS)
    request = fleet_pb2.ListNodesRequest()
    answer = session.call("nodes", lambda stub: stub.ListNodes, request, READ_SECONDS, FleetServiceStub)
    return {**document, "connected": {node.node_id for node in answer.nodes if node.connected}}


def _follow(session: Session, seconds: float) -> dict[str, Any]:
    """Until every connected node has come to an end with each engine that it can install."""
    begun = time.monotonic()

    def done(document: dict[str, Any]) -> bool:
        final = {"installed", "unsupported"}
        if time.monotonic() - begun >= STALE_SECONDS:
            final.add("failed")
        return set(_states(document, document["connected"]).values()) <= final

    return progress.follow(
        lambda: _ask(session), done, "provision", seconds, lines=_lines, see="clustercli provision"
    )


def _lines(document: dict[str, Any]) -> dict[str, str]:
    """One for each engine on each node."""
    return {
        f"{node['node_id']} {engine['engine']}": _line(node["node_id"], engine)
        for node in document["nodes"]
        for engine in node["engines"]
    }


def _line(node: str, engine: dict[str, Any]) -> str:
    detail = f", {engine['detail']}" if engine["detail"] else ""
    return f"{node}: {engine['engine']} {engine['version']} {engine['state']}{detail}"


def _states(document: dict[str, Any], connected: set[str]) -> dict[tuple[str, str], str]:
    """How far each node is with each wanted engine that it can install; empty where it has not said."""
    return {
        (node["node_id"], want["engine"]): _state(node, want)
        for node in document["nodes"]
        if node["node_id"] in connected
        for want in document["engines"]
        if want["engine"] not in node["not_installable"]
    }


def _lacking(document: dict[str, Any], connected: set[str]) -> list[str]:
    """What connected nodes have not got."""
    states = _states(document, connected)
    found = [f"{name} is {state} on {node}" for (node, name), state in states.items() if state != "installed"]
    able = {name for _, name in states}
    nowhere = [want["engine"] for want in document["engines"] if want["engine"] not in able]
    return found + [f"no connected node can install {name}" for name in nowhere]


def _state(node: dict[str, Any], want: dict[str, Any]) -> str:
    for engine in node["engines"]:
        if (engine["engine"], engine["version"]) == (want["engine"], want["version"]):
            return str(engine["state"])
    return ""
