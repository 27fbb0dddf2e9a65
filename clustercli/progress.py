"""Waits until something that takes long is done, and tells on stderr what changes on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli.call import REFUSED, CallError
from clustercli.plain import plain
from clustercli.printable import printable
from clustercli.render_fleet import progress_text, shard_state
from clustercli.session import READ_SECONDS, Session

PAUSE_SECONDS = 0.5

Document = dict[str, Any]
# What there is to tell of a document: a line for each thing, by its name.
Lines = Callable[[Document], dict[str, str]]

T = TypeVar("T")


class Asker:
    """Asks again and again; what passes (a host or a leader that is away) is told once and endured."""

    def __init__(self) -> None:
        self._trouble = ""

    def ask(self, question: Callable[[], T]) -> T | None:
        """The answer, None while there is none. Raises CallError when asking again is of no use."""
        try:
            answer = question()
        except CallError as error:
            if not error.passing:
                raise
            if str(error) != self._trouble:
                typer.echo(printable(f"clustercli: {error}"), err=True)
            self._trouble = str(error)
            return None
        self._trouble = ""
        return answer


def list_shards(session: Session, model: str) -> Document:
    """The shards of a model, or all."""
    request = fleet_pb2.ListShardsRequest(model=model)
    return plain(
        session.call("shards", lambda stub: stub.ListShards, request, READ_SECONDS, FleetServiceStub)
    )


def shard_lines(document: Document) -> dict[str, str]:
    """What there is to tell of shards, and of replicas without a place."""
    lines = {shard["shard_id"]: _line(shard) for shard in document["shards"]}
    lines |= {u["replica_id"]: f"{u['replica_id']} has no place: {u['reason']}" for u in document["unplaced"]}
    if document["waiting"]:
        lines["waiting"] = document["waiting"]
    return lines


def follow(
    ask: Callable[[], Document],
    done: Callable[[Document], bool],
    what: str,
    seconds: float,
    *,
    lines: Lines = shard_lines,
    see: str = "clustercli shards",
) -> Document:
    """Ask until `done`; each change is a line on stderr. Raises CallError after `seconds`."""
    end = time.monotonic() + seconds
    told: dict[str, str] = {}
    asker = Asker()
    while True:
        document = asker.ask(ask)
        if document is not None:
            _tell(lines(document), told)
            if done(document):
                return document
        if time.monotonic() >= end:
            raise CallError(f"{what}: not done within {seconds:g} s; it goes on, see {see}", REFUSED)
        time.sleep(PAUSE_SECONDS)


def _tell(lines: dict[str, str], told: dict[str, str]) -> None:
    """Print what is new since the last look."""
    for name in [name for name in told if name not in lines]:
        del told[name]
        typer.echo(f"{name}: gone", err=True)
    for name, line in lines.items():
        if told.get(name) != line:
            told[name] = line
            typer.echo(printable(line), err=True)


def _line(shard: Document) -> str:
    parts = (
        f"{shard['shard_id']}: {shard_state({**shard, 'retry_in_seconds': 0})} on {shard['node_id']}",
        progress_text(shard["progress"]),
        shard["reason"],
    )
    return ", ".join(filter(None, parts))
