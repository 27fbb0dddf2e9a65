"""Rails, their bandwidth, and maps of fabrics as tables and lines."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from clustercli.render import time_text

Document = dict[str, Any]


def rail_text(rail: Document) -> str:
    """`mlx5_0/1 → mlx5_0/1 on ib0`."""
    if not rail["client_hca"] and not rail["server_hca"]:
        return "TCP between the nodes' addresses"
    where = f" on {rail['fabric']}" if rail["fabric"] else ""
    return f"{_port(rail, 'client')} → {_port(rail, 'server')}{where}"


def _port(rail: Document, side: str) -> str:
    hca = rail[f"{side}_hca"]
    return f"{hca}/{rail[f'{side}_port'] or 1}" if hca else "none"


def result_text(result: Document) -> str:
    """What came of one rail, in a line."""
    if result["error"]:
        return f"failed: {result['error']}"
    figures = f"{result['average_gbps']:.1f} Gb/s"
    if result["grade"] == "unspecified":
        return f"{figures}, not graded: the link's rate is not known"
    return f"{result['grade']}: {figures}, {100 * result['share']:.0f} % of {result['rate_gbps']} Gb/s"


def rails_table(document: Document) -> RenderableType:
    """Every rail of a test."""
    title = f"{document['client_node']} to {document['server_node']}, {document['seconds']} s each"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("rail", "link", "average", "peak", "of the link", "grade", "problem"):
        table.add_column(heading)
    for result in document["rails"]:
        graded = result["grade"] != "unspecified"
        measured = not result["error"]
        table.add_row(
            rail_text(result),
            f"{result['link_layer']} {result['rate_gbps']} Gb/s" if result["rate_gbps"] else "",
            f"{result['average_gbps']:.1f} Gb/s" if measured else "",
            f"{result['peak_gbps']:.1f} Gb/s" if measured else "",
            f"{100 * result['share']:.0f} %" if measured and graded else "",
            result["grade"] if graded else "failed" if result["error"] else "not graded",
            result["error"],
        )
    return table


def scan_text(document: Document) -> RenderableType:
    """One map as its tool wrote it."""
    return f"{document['output']}\n\n{_seen(document)}"


def whole_map(document: Document) -> RenderableType:
    """The leader's map of one fabric."""
    [found] = document["maps"]
    return f"{found['error'] or found['output']}\n\n{_seen(found)} at {time_text(found['at'])}"


def _seen(found: Document) -> str:
    where = f"{found['node_id']} {found['hca']}/{found['port']}"
    return f"seen from {where} in {found['took_seconds']:.1f} s"


def maps_table(document: Document) -> RenderableType:
    """The leader's maps, a line each."""
    if not document["maps"]:
        return "No InfiniBand fabric is mapped: no node has a working port, or the leader has begun just now"
    table = Table(title="InfiniBand fabrics", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("fabric", "seen from", "at", "took", "what is on it", "problem"):
        table.add_column(heading)
    for found in document["maps"]:
        table.add_row(
            found["fabric"],
            f"{found['node_id']} {found['hca']}/{found['port']}",
            time_text(found["at"]),
            f"{found['took_seconds']:.1f} s",
            f"{found['switches']} switches, {found['adapters']} adapters, {found['routers']} routers",
            found["error"],
        )
    return table
