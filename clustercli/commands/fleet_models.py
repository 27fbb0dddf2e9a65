"""Models and their shards: models apply|get|delete, shards, start, stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from akv.v1 import fleet_pb2
from akv.v1.fleet_pb2_grpc import FleetServiceStub

from clustercli import progress, render_fleet
from clustercli.commands.fleet import Wait, WaitSeconds
from clustercli.model_file import ModelFileError, read_model
from clustercli.plain import plain
from clustercli.session import (
    CHANGE_SECONDS,
    READ_SECONDS,
    Session,
    Watch,
    WatchEvery,
    WatchFlag,
    session_of,
)

Model = Annotated[str, typer.Argument(help="Name of the model.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The catalogue of models.")
    group.command("apply")(apply)
    group.command("get")(get)
    group.command("delete")(delete)
    app.add_typer(group, name="models")
    app.command("shards")(shards)
    app.command("start")(start)
    app.command("stop")(stop)


def apply(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="YAML file of one model (docs/fleet.md).")],
    wait: Wait = False,
    seconds: WaitSeconds = 1800.0,
) -> None:
    """Write a model into the catalogue; what has changed is placed anew."""
    session = session_of(context)
    try:
        model = read_model(file)
    except ModelFileError as error:
        raise typer.BadParameter(str(error)) from None
    request = fleet_pb2.ApplyModelRequest(model=model)
    answer = session.call(
        "models apply", lambda stub: stub.ApplyModel, request, CHANGE_SECONDS, FleetServiceStub
    )
    if wait:
        _follow_start(session, answer.model.name, answer.model.replicas, seconds)
    session.show(plain(answer), _applied)


def _applied(document: dict[str, Any]) -> str:
    model = document["model"]
    change = "is written" if document["changed"] else "is unchanged"
    return f"Model {model['name']} {change}: revision {model['revision']}, {model['replicas']} replicas"


def get(
    context: typer.Context, name: Annotated[str, typer.Argument(help="Name of the model; none = all.")] = ""
) -> None:
    """Show the catalogue."""
    session = session_of(context)
    session.show(plain(_models(session, "models get", name)), render_fleet.models_table)


def _models(session: Session, action: str, name: str) -> fleet_pb2.GetModelsResponse:
    request = fleet_pb2.GetModelsRequest(name=name)
    answer: fleet_pb2.GetModelsResponse = session.call(
        action, lambda stub: stub.GetModels, request, READ_SECONDS, FleetServiceStub
    )
    return answer


def delete(context: typer.Context, name: Model) -> None:
    """Take a model out of the catalogue; its shards are drained and stopped."""
    session = session_of(context)
    request = fleet_pb2.DeleteModelRequest(name=name)
    session.call("models delete", lambda stub: stub.DeleteModel, request, CHANGE_SECONDS, FleetServiceStub)
    session.show({"name": name}, lambda d: f"Model {d['name']} is deleted; its shards are being stopped")


def shards(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", help="Only those of this model.")] = "",
    watch: WatchFlag = False,
    every: WatchEvery = 2.0,
) -> None:
    """Show the shards and what has no room."""
    session = session_of(context)
    session.present(
        lambda: progress.list_shards(session, model), render_fleet.shards_table, Watch(watch, every)
    )


def start(
    context: typer.Context,
    name: Model,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, max=1000, help="How many of them; as many as are wanted, or 1."),
    ] = None,
    wait: Wait = True,
    seconds: WaitSeconds = 1800.0,
) -> None:
    """Run a model of the catalogue with so many replicas."""
    session = session_of(context)
    if not name:
        raise typer.BadParameter("the name is empty: name a model of the catalogue", param_hint="NAME")
    if replicas is None:
        replicas = max(1, _models(session, "start", name).models[0].replicas)
    _scale(session, "start", name, replicas)
    if wait:
        _follow_start(session, name, replicas, seconds)
    state = "running" if wait else "wanted"
    session.show(
        {"name": name, "replicas": replicas}, lambda d: f"Model {d['name']}: {d['replicas']} replicas {state}"
    )


def stop(context: typer.Context, name: Model, wait: Wait = True, seconds: WaitSeconds = 1800.0) -> None:
    """Drain and stop every replica of a model; it stays in the catalogue."""
    session = session_of(context)
    _scale(session, "stop", name, 0)
    if wait:
        progress.follow(
            lambda: progress.list_shards(session, name), lambda d: not d["shards"], f"stop of {name}", seconds
        )
    session.show({"name": name, "replicas": 0}, lambda d: f"Model {d['name']} is stopped")


def _scale(session: Session, action: str, name: str, replicas: int) -> None:
    request = fleet_pb2.ScaleModelRequest(name=name, replicas=replicas)
    session.call(action, lambda stub: stub.ScaleModel, request, CHANGE_SECONDS, FleetServiceStub)


def _follow_start(session: Session, name: str, replicas: int, seconds: float) -> None:
    """Until so many replicas run, and no other is left."""

    def done(document: dict[str, Any]) -> bool:
        there = document["shards"]
        found = {shard["replica_id"] for shard in there}
        return len(found) == replicas and all(shard["state"] == "running" for shard in there)

    progress.follow(lambda: progress.list_shards(session, name), done, f"start of {name}", seconds)
