"""Waits until the shards of a model are where they should be, and tells what changes on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import typer
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli.call import REFUSED, CallError
from clustercli.plain import plain
from clustercli.render_fleet import progress_text, shard_state
from clustercli.session import READ_SECONDS, Session

PAUSE_SECONDS = 0.5

Document = dict[str, Any]


def list_shards(session: Session, model: str) -> Document:
    """The shards of a model, or all."""
    request = fleet_pb2.ListShardsRequest(model=model)
    return plain(
        session.call("shards", lambda stub: stub.ListShards, request, READ_SECONDS, FleetServiceStub)
    )


def follow(
    ask: Callable[[], Document], done: Callable[[Document], bool], what: str, seconds: float
) -> Document:
    """Ask until `done`; each change is a line on stderr. Raises CallError after `seconds`."""
    end = time.monotonic() + seconds
    told: dict[str, str] = {}
    while True:
        document = ask()
        _tell(document, told)
        if done(document):
            return document
        if time.monotonic() >= end:
            raise CallError(
                f"{what}: not done within {seconds:g} s; it goes on, see clustercli shards", REFUSED
            )
        time.sleep(PAUSE_SECONDS)


def _tell(document: Document, told: dict[str, str]) -> None:
    """Print what is new since the last look."""
    lines = {shard["shard_id"]: _line(shard) for shard in document["shards"]}
    lines |= {u["replica_id"]: f"{u['replica_id']} has no place: {u['reason']}" for u in document["unplaced"]}
    if document["waiting"]:
        lines["waiting"] = document["waiting"]
    for name in [name for name in told if name not in lines]:
        del told[name]
        typer.echo(f"{name}: gone", err=True)
    for name, line in lines.items():
        if told.get(name) != line:
            told[name] = line
            typer.echo(line, err=True)


def _line(shard: Document) -> str:
    parts = (
        f"{shard['shard_id']}: {shard_state({**shard, 'retry_in_seconds': 0})} on {shard['node_id']}",
        progress_text(shard["progress"]),
        shard["reason"],
    )
    return ", ".join(filter(None, parts))
