"""The global options of one run: whom to ask, for how long, and how the answer is printed."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import grpc
import typer
from akv.v1.cluster_pb2_grpc import ClusterServiceStub
from rich.console import Console, RenderableType

from clustercli.call import CallError, call_cluster
from clustercli.printable import printable, printable_document
from clustercli.target import Target

READ_SECONDS = 10.0
CHANGE_SECONDS = 120.0
PIPE_COLUMNS = 240


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Watch:
    """Whether an answer is shown again and again, and the pause in seconds."""

    on: bool
    every: float


WatchFlag = Annotated[bool, typer.Option("--watch", help="Show it again and again until interrupted.")]
WatchEvery = Annotated[
    float,
    typer.Option("--every", min=0.2, max=86400, help="Seconds between two, with --watch."),
]


@dataclass(frozen=True, slots=True)
class Session:
    """The global options of one run."""

    target: Target
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
            shown = table(printable_document(document))
            Console(width=width, highlight=False, markup=False).print(shown)

    def present(
        self,
        ask: Callable[[], dict[str, Any]],
        table: Callable[[dict[str, Any]], RenderableType],
        watch: Watch,
    ) -> None:
        """Print what `ask` gives: once, or again and again until interrupted.

        As JSON, a watched answer is one line. A failure ends only what is not watched.
        """
        if not watch.on:
            return self.show(ask(), table)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                try:
                    document = ask()
                except CallError as error:
                    typer.echo(printable(f"clustercli: {error}"), err=True)
                else:
                    self._show_again(document, table)
                time.sleep(watch.every)

    def _show_again(
        self, document: dict[str, Any], table: Callable[[dict[str, Any]], RenderableType]
    ) -> None:
        if self.output is Output.JSON:
            typer.echo(json.dumps(document, ensure_ascii=False))
            return
        if sys.stdout.isatty():
            Console().clear()
        typer.echo(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ"))
        self.show(document, table)


def session_of(context: typer.Context) -> Session:
    """Return the session that main's options made for this run."""
    session = context.find_object(Session)
    assert session is not None, "the app's callback makes the session"
    return session
