"""Nodes, shards and models as tables. Their JSON documents are the API's messages (docs/fleet.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table

from clustercli.render import time_text

GIB = 1 << 30


def nodes_table(document: dict[str, Any]) -> RenderableType:
    """Every node in a line."""
    headings = (
        "node",
        "state",
        "agent",
        "GPUs",
        "free",
        "memory",
        "fabrics",
        "engines",
        "shards",
        "problems",
    )
    table = _table("nodes", headings)
    for node in document["nodes"]:
        table.add_row(
            node["node_id"],
            _node_state(node),
            node["agent_version"],
            _gpus(node),
            str(node["gpus_free"]),
            f"{node['memory_total_bytes'] / GIB:.0f} GiB",
            ", ".join(node["fabrics"]),
            _engines(node["engines"]),
            str(node["shards"]),
            "; ".join(node["problems"]),
        )
    leader = f"leader {document['leader']}" if document["leader"] else ""
    return _with_remarks(table, leader, document["waiting"])


def node_table(document: dict[str, Any]) -> RenderableType:
    """One node: what it is, what it has, what runs there and what happened to it."""
    summary, node = document["summary"], document["node"]
    parts: list[RenderableType] = [nodes_table({"nodes": [summary], "leader": "", "waiting": ""})]
    if node is not None:
        parts += _node_parts(node, document)
    if document["shards"]:
        parts.append(shards_table({"shards": document["shards"], "unplaced": [], "waiting": ""}))
    events = _table("events", ("time", "kind", "subject", "before", "after"))
    for event in document["events"]:
        events.add_row(
            time_text(event["at"]), event["kind"], event["subject"], event["before"], event["after"]
        )
    return Group(*parts, events)


def _node_parts(node: dict[str, Any], document: dict[str, Any]) -> list[RenderableType]:
    machine = (
        f"{node['hostname']} · {node['operating_system']} · kernel {node['kernel']} · {_cpu(node['cpu'])}"
    )
    parts: list[RenderableType] = [machine]
    if node["gpus"]:
        gpus = _table("GPUs", ("index", "model", "uuid", "memory used", "NUMA", "NVLink", "problems"))
        for gpu in node["gpus"]:
            fabric = gpu["fabric"] or {}
            used = f"{gpu['memory_used_bytes'] / GIB:.1f} of {gpu['memory_total_bytes'] / GIB:.0f} GiB"
            gpus.add_row(
                str(gpu["index"]),
                gpu["model"],
                gpu["uuid"],
                used,
                str(gpu["numa_node"]),
                fabric.get("state", ""),
                "; ".join(gpu["problems"]),
            )
        parts.append(gpus)
    parts += _ports(node, document["rates"])
    parts += _storage(node)
    if document["load"] is not None:
        load = document["load"]
        parts.append(
            f"load {load['load1']:.2f} {load['load5']:.2f} {load['load15']:.2f}, "
            f"CPU {load['cpu_percent']:.0f} % of {load['cpu_count']}, "
            f"memory {decimal(load['memory_used_bytes'])} used"
        )
    return parts


def _cpu(cpu: dict[str, Any] | None) -> str:
    return f"{cpu['count']} cores of {cpu['model']}" if cpu is not None else "CPU not known"


def _ports(node: dict[str, Any], rates: Iterable[dict[str, Any]]) -> list[RenderableType]:
    ports = (node["ib_ports"] or {"ports": []})["ports"]
    if not ports:
        return []
    by_port = {(rate["hca"], rate["port"]): rate for rate in rates}
    table = _table("ports", ("port", "state", "rate", "link", "out", "in", "subnet manager"))
    for port in ports:
        rate = by_port.get((port["hca"], port["port"]), {})
        table.add_row(
            f"{port['hca']}/{port['port']}",
            port["state"],
            f"{port['rate_gbps']} Gb/s",
            port["link_layer"],
            f"{decimal(int(rate.get('transmit_bytes_per_second', 0)))}/s",
            f"{decimal(int(rate.get('receive_bytes_per_second', 0)))}/s",
            port["sm_guid"] or port["sm_error"],
        )
    return [table]


def _storage(node: dict[str, Any]) -> list[RenderableType]:
    file_systems = (node["storage"] or {"file_systems": []})["file_systems"]
    if not file_systems:
        return []
    table = _table("storage", ("path", "free", "of", "shared"))
    for place in file_systems:
        shared = "yes" if place["shared"] else "no"
        table.add_row(place["path"], decimal(place["free_bytes"]), decimal(place["total_bytes"]), shared)
    return [table]


def shards_table(document: dict[str, Any]) -> RenderableType:
    """Shards, and below them what has no room."""
    headings = ("shard", "model", "node", "GPUs", "state", "since", "address", "progress", "reason")
    table = _table("shards", headings)
    for shard in document["shards"]:
        table.add_row(
            shard["shard_id"],
            f"{shard['model']} ({shard['profile']})",
            shard["node_id"],
            str(len(shard["gpu_uuids"])),
            shard_state(shard),
            time_text(shard["since"]),
            shard["address"],
            progress_text(shard["progress"]),
            shard["reason"],
        )
    without = [f"{u['replica_id']} has no place: {u['reason']}" for u in document["unplaced"]]
    return _with_remarks(table, *without, document["waiting"])


def shard_state(shard: dict[str, Any]) -> str:
    """A shard's state, with its failures in a row and its next start."""
    state = "waiting" if shard["state"] == "unspecified" else str(shard["state"])
    failures = f", {shard['failures']} failures" if shard["failures"] else ""
    retry = f", again in {shard['retry_in_seconds']:.0f} s" if shard["retry_in_seconds"] > 0 else ""
    return state + failures + retry


def progress_text(progress: dict[str, Any] | None) -> str:
    """How far a start is."""
    if progress is None:
        return ""
    done, total = progress["bytes_done"], progress["bytes_total"]
    if total <= 0:
        return f"{progress['source']} {decimal(done)}".strip()
    return f"{progress['source']} {100 * done / total:.0f} % of {decimal(total)}".strip()


def models_table(document: dict[str, Any]) -> RenderableType:
    """The catalogue."""
    table = _table(
        "models", ("model", "replicas", "profile", "engine", "GPUs", "nodes", "fabric", "arguments")
    )
    for model in document["models"]:
        name, replicas = model["name"], str(model["replicas"])
        for profile in model["profiles"]:
            table.add_row(
                name,
                replicas,
                profile["name"],
                f"{profile['engine']} {profile['engine_version']}".rstrip(),
                str(profile["gpus"]),
                str(profile["nodes"]),
                profile["fabric"],
                " ".join(profile["arguments"]),
            )
            name = replicas = ""
    return table


def provision_table(document: dict[str, Any]) -> RenderableType:
    """What is wanted, and how far each node is."""
    wanted = ", ".join(f"{e['engine']} {e['version']}".rstrip() for e in document["engines"]) or "nothing"
    table = _table(f"wanted on every node: {wanted}", ("node", "engine", "version", "state", "detail"))
    for node in document["nodes"]:
        name = node["node_id"]
        for engine in node["engines"]:
            table.add_row(name, engine["engine"], engine["version"], engine["state"], engine["detail"])
            name = ""
        for engine in node["not_installable"]:
            table.add_row(name, engine, "", "not installable", "its agent can't install it")
            name = ""
    return table


def weights_table(document: dict[str, Any]) -> RenderableType:
    """The weights on a node, the largest first."""
    table = _table(f"weights on {document['node_id']}", ("path", "size", "shared"))
    for entry in sorted(document["weights"], key=lambda entry: -entry["size_bytes"]):
        table.add_row(entry["path"], decimal(entry["size_bytes"]), "yes" if entry["shared"] else "no")
    return table


def removed_text(document: dict[str, Any]) -> RenderableType:
    """What was removed, and why the rest is kept."""
    lines = [f"removed {path}" for path in document["removed"]]
    lines += [f"kept {kept['path']}: {kept['reason']}" for kept in document["kept"]]
    return "\n".join([*lines, f"{decimal(document['freed_bytes'])} freed on {document['node_id']}"])


def _node_state(node: dict[str, Any]) -> str:
    remarks = [
        word
        for word, holds in (("draining", node["draining"]), ("no stream", not node["connected"]))
        if holds
    ]
    return ", ".join([str(node["state"]), *remarks])


def _gpus(node: dict[str, Any]) -> str:
    unhealthy = f" ({node['gpus_unhealthy']} unhealthy)" if node["gpus_unhealthy"] else ""
    return f"{node['gpus']}{unhealthy}"


def _engines(engines: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}".rstrip() for name, version in engines.items())


def _table(title: str, headings: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading)
    return table


def _with_remarks(table: Table, *remarks: str) -> RenderableType:
    return Group(table, *filter(None, remarks))
