"""clustercli: the operator's command line of the card cluster.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no cluster service answered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from akv.v1 import cluster_pb2
from rich.console import Console, RenderableType

from clustercli import render
from clustercli.call import DEFAULT_PORT, CallError, call_cluster
from controlplane.base.addresses import AddressError, HostPort, parse_host_port
from controlplane.base.version import program_version

READ_SECONDS = 10.0
CHANGE_SECONDS = 120.0
PIPE_COLUMNS = 240
GLOBAL_OPTIONS = ("--host", "--output", "--timeout")

app = typer.Typer(
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one run."""

    target: HostPort
    output: Output
    timeout: float | None

    def call(
        self, action: str, method: Callable[[Any], Callable[..., Any]], request: Any, seconds: float
    ) -> Any:
        """Call the cluster API; `seconds` is the deadline unless --timeout was given."""
        return call_cluster(self.target, self.timeout or seconds, action, method, request)

    def show(self, document: dict[str, Any], table: Callable[[dict[str, Any]], RenderableType]) -> None:
        """Print the answer on stdout."""
        if self.output is Output.JSON:
            typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        else:
            width = None if sys.stdout.isatty() else PIPE_COLUMNS
            Console(width=width, highlight=False, markup=False).print(table(document))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(program_version("clustercli"))
        raise typer.Exit


def _host_option(text: str) -> HostPort:
    try:
        return parse_host_port(text, DEFAULT_PORT)
    except AddressError as error:
        raise typer.BadParameter(str(error), param_hint="--host") from None


@app.callback()
def options(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Cluster host to ask, ADDR[:PORT].")] = "127.0.0.1:5000",
    output: Annotated[Output, typer.Option(help="Form of the answer.")] = Output.TABLE,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Deadline in seconds (10 to read, 120 to change).")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Read the global options."""
    context.obj = Session(_host_option(host), output, timeout)


@app.command("create_cluster")
def create_cluster(
    context: typer.Context, name: Annotated[str, typer.Option("--name", help="Name of the new cluster.")]
) -> None:
    """Make the asked host the first member of a new cluster."""
    session: Session = context.obj
    request = cluster_pb2.CreateClusterRequest(name=name)
    answer = session.call("create_cluster", lambda stub: stub.CreateCluster, request, CHANGE_SECONDS)
    document = {"cluster_uuid": answer.cluster_uuid, "cluster_name": name}
    session.show(document, lambda d: f"Cluster {d['cluster_name']} is created, uuid {d['cluster_uuid']}")


@app.command("add_node")
def add_node(
    context: typer.Context,
    node: Annotated[str, typer.Option("-n", "--node", help="A host that is in the cluster, ADDR[:PORT].")],
) -> None:
    """Make the asked host join the cluster that host -n belongs to."""
    session: Session = context.obj
    request = cluster_pb2.AddNodeRequest(via_host=node)
    answer = session.call("add_node", lambda stub: stub.AddNode, request, CHANGE_SECONDS)
    document = {"cluster_uuid": answer.cluster_uuid, "cluster_name": answer.cluster_name}
    session.show(document, lambda d: f"The host is in cluster {d['cluster_name']}, uuid {d['cluster_uuid']}")


@app.command("remove_node")
def remove_node(
    context: typer.Context,
    node: Annotated[str, typer.Option("-n", "--node", help="Name of the host to take out.")],
    forget_cards: Annotated[
        bool, typer.Option("--forget-cards", help="Also free the slots of its cards; others may move.")
    ] = False,
) -> None:
    """Take a host out of the cluster; any host can be asked."""
    session: Session = context.obj
    request = cluster_pb2.RemoveNodeRequest(host=node, forget_cards=forget_cards)
    answer = session.call("remove_node", lambda stub: stub.RemoveNode, request, CHANGE_SECONDS)
    document = {"host": node, "forgotten_serials": list(answer.forgotten_serials)}
    session.show(document, _removed)


def _removed(document: dict[str, Any]) -> str:
    forgotten = ", ".join(document["forgotten_serials"])
    tail = f"; forgotten cards: {forgotten}" if forgotten else "; its cards keep their slots"
    return f"Host {document['host']} is out of the cluster{tail}"


@app.command("get_cluster")
def get_cluster(context: typer.Context) -> None:
    """Show hosts, cards, health and quorum."""
    session: Session = context.obj
    request = cluster_pb2.GetClusterRequest()
    answer = session.call("get_cluster", lambda stub: stub.GetCluster, request, READ_SECONDS)
    session.show(render.cluster_document(answer), render.cluster_table)


@app.command("get_members")
def get_members(context: typer.Context) -> None:
    """Show the etcd members."""
    session: Session = context.obj
    request = cluster_pb2.GetMembersRequest()
    answer = session.call("get_members", lambda stub: stub.GetMembers, request, READ_SECONDS)
    session.show(render.members_document(answer), render.members_table)


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move the global options in front of the command, so that both orders are right.

    An option that lacks its value stands alone, so that nothing else is taken for it.
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in GLOBAL_OPTIONS:
            value = next(words, None)
            if value is None:
                return [word]
            front += [word, value]
        elif word.startswith(tuple(f"{option}=" for option in GLOBAL_OPTIONS)):
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def main() -> None:
    """Entry point of clustercli."""
    try:
        app(args=hoist(sys.argv[1:]), prog_name="clustercli")
    except CallError as error:
        typer.echo(f"clustercli: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
