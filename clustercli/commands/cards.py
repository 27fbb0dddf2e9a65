"""Cards and their slots: cards, cards forget, plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from akv.v1 import cluster_pb2
from akv.v1.cluster_pb2_grpc import OperatorServiceStub

from clustercli import render_cards
from clustercli.session import (
    CHANGE_SECONDS,
    READ_SECONDS,
    Watch,
    WatchEvery,
    WatchFlag,
    session_of,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(cards)
    group.command("forget")(forget)
    app.add_typer(group, name="cards")
    app.command("plan")(plan)


def cards(context: typer.Context, watch: WatchFlag = False, every: WatchEvery = 2.0) -> None:
    """Show every card with its slot, its places and what it said of its serial; or `cards forget SERIAL`."""
    if context.invoked_subcommand is not None:
        return
    session = session_of(context)

    def ask() -> dict[str, Any]:
        request = cluster_pb2.ListCardsRequest()
        answer = session.call(
            "cards", lambda stub: stub.ListCards, request, READ_SECONDS, OperatorServiceStub
        )
        return render_cards.cards_document(answer)

    session.present(ask, render_cards.cards_table, Watch(watch, every))


def forget(
    context: typer.Context,
    serial: Annotated[str, typer.Argument(help="Serial number of the card.")],
    even_if_listed: Annotated[
        bool, typer.Option("--even-if-listed", help="Also while a host lists it; it then joins again, last.")
    ] = False,
) -> None:
    """Take one card out of the registry and free its slot; other cards may move, and miss what they had."""
    session = session_of(context)
    request = cluster_pb2.ForgetCardRequest(xdp_serial=serial, even_if_listed=even_if_listed)
    answer = session.call(
        "cards forget", lambda stub: stub.ForgetCard, request, CHANGE_SECONDS, OperatorServiceStub
    )
    session.show(render_cards.forgotten_document(answer), render_cards.forgotten_text)


def plan(
    context: typer.Context,
    num_dbs: Annotated[
        int,
        typer.Option(
            "--num-dbs", min=1, max=1 << 20, help="num_dbs of the gateways: the fingerprint depends on it."
        ),
    ] = 128,
    watch: WatchFlag = False,
    every: WatchEvery = 2.0,
) -> None:
    """Show the slot plan and its fingerprint, as every gateway computes them from the registry."""
    session = session_of(context)

    def ask() -> dict[str, Any]:
        request = cluster_pb2.ShowPlanRequest(num_dbs=num_dbs)
        answer = session.call("plan", lambda stub: stub.ShowPlan, request, READ_SECONDS, OperatorServiceStub)
        return render_cards.plan_document(answer)

    session.present(ask, render_cards.plan_table, Watch(watch, every))
