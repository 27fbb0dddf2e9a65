"""Rails, their bandwidth, and maps of fabrics as tables and lines."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from clustercli.render import time_text

Document = dict[str, Any]
# What ibnetdiscover begins the description of each kind of node with.
_KINDS = {"Switch": "switches", "Ca": "adapters", "Rt": "routers"}


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
    seen = f"{document['node_id']} {document['hca']}/{document['port']}"
    return f"{document['output']}\n\nseen from {seen} in {document['took_seconds']:.1f} s"


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
            _contents(found["output"]),
            found["error"],
        )
    return table


def _contents(output: str) -> str:
    """How many nodes of each kind a map has."""
    count = Counter(line.split(None, 1)[0] for line in output.splitlines() if line.strip())
    return ", ".join(f"{count[word]} {name}" for word, name in _KINDS.items() if count[word])
