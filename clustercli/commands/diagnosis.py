"""What happened, and what is wrong: events, doctor."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Annotated, Any

import typer
from akv.v1 import cluster_pb2
from akv.v1.cluster_pb2_grpc import OperatorServiceStub

from clustercli import render_diagnosis
from clustercli.call import REFUSED, CallError
from clustercli.printable import printable
from clustercli.session import READ_SECONDS, Output, Session, session_of

CHECK_SECONDS = 90.0
# One call of --follow waits this long for news; its deadline is longer.
FOLLOW_SECONDS = 15.0
RETRY_SECONDS = 2.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("events")(events)
    app.command("doctor")(doctor)


def events(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The newest so many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new ones until interrupted.")] = False,
) -> None:
    """Show what the leader and the hosts decided, newest last; as JSON with --follow, one event a line."""
    session = session_of(context)
    answer = _ask(session, after=0, limit=limit, wait=0.0)
    document = render_diagnosis.events_document(answer)
    if not follow and session.output is Output.JSON:
        session.show(document, str)
        return
    if not follow:
        _print(session, document["events"])
        return
    with contextlib.suppress(KeyboardInterrupt):
        _follow(session, document["events"])


def _follow(session: Session, news: list[dict[str, Any]]) -> None:
    """Print events as they come; a host that is away for a while is asked again."""
    last = 0
    while True:
        _print(session, news)
        last = max([last, *(event["number"] for event in news)])
        try:
            answer = _ask(session, after=last, limit=0, wait=FOLLOW_SECONDS)
        except CallError as error:
            typer.echo(printable(f"clustercli: {error}"), err=True)
            time.sleep(RETRY_SECONDS)
            news = []
            continue
        news = render_diagnosis.events_document(answer)["events"]


def _print(session: Session, news: list[dict[str, Any]]) -> None:
    """One event a line, never folded."""
    for event in news:
        line = json.dumps(event, ensure_ascii=False)
        typer.echo(line if session.output is Output.JSON else printable(render_diagnosis.event_line(event)))


def _ask(session: Session, after: int, limit: int, wait: float) -> cluster_pb2.ListEventsResponse:
    request = cluster_pb2.ListEventsRequest(after=after, limit=limit, wait_seconds=wait)
    seconds = READ_SECONDS + wait
    answer: cluster_pb2.ListEventsResponse = session.call(
        "events", lambda stub: stub.ListEvents, request, seconds, OperatorServiceStub
    )
    return answer


def doctor(
    context: typer.Context,
    node: Annotated[
        str, typer.Option("-n", "--node", help="A host of the cluster to join: also check the way to it.")
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            envvar="CLUSTERCLI_TOKEN",
            help="Join token, with -n: the cluster's hosts look at one that has no certificate yet (mtls).",
        ),
    ] = "",
) -> None:
    """Check the asked host before it joins, or as a member, and say what to do.

    Exit code 1 when a check failed; warnings alone are 0.
    """
    session = session_of(context)
    if not node:
        # One that stands in the environment is meant for add_node.
        source = context.get_parameter_source("token")
        if token and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter("--token is for -n HOST: name a host of the cluster to join")
        token = ""
    request = cluster_pb2.CheckHostRequest(via_host=node, token=token)
    answer = session.call("doctor", lambda stub: stub.CheckHost, request, CHECK_SECONDS, OperatorServiceStub)
    document = render_diagnosis.doctor_document(answer)
    session.show(document, render_diagnosis.doctor_table)
    if document["failed"]:
        raise typer.Exit(REFUSED)
