"""The global options of one run: whom to ask, for how long, and how the answer is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import grpc
import typer
from akv.v1.cluster_pb2_grpc import ClusterServiceStub
from rich.console import Console, RenderableType

from clustercli.call import call_cluster
from controlplane.base.addresses import HostPort

READ_SECONDS = 10.0
CHANGE_SECONDS = 120.0
PIPE_COLUMNS = 240


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
        self,
        action: str,
        method: Callable[[Any], Callable[..., Any]],
        request: Any,
        seconds: float,
        service: Callable[[grpc.Channel], Any] = ClusterServiceStub,
    ) -> Any:
        """Call a service of the asked host; `seconds` is the deadline unless --timeout was given."""
        return call_cluster(self.target, self.timeout or seconds, action, method, request, service)

    def show(self, document: dict[str, Any], table: Callable[[dict[str, Any]], RenderableType]) -> None:
        """Print the answer on stdout."""
        if self.output is Output.JSON:
            typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        else:
            width = None if sys.stdout.isatty() else PIPE_COLUMNS
            Console(width=width, highlight=False, markup=False).print(table(document))


def session_of(context: typer.Context) -> Session:
    """Return the session that main's options made for this run."""
    session = context.find_object(Session)
    assert session is not None, "the app's callback makes the session"
    return session
