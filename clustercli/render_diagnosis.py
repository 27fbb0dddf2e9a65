"""Events and the doctor's report as JSON documents (a stable schema, docs/clustercli.md) and as tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

from akv.v1 import cluster_pb2
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from clustercli.render import time_text


def events_document(answer: cluster_pb2.ListEventsResponse) -> dict[str, Any]:
    """Events, newest last."""
    return {
        "cluster_uuid": answer.cluster_uuid,
        "events": [
            {
                "number": event.number,
                "time": event.time,
                "host": event.host,
                "kind": event.kind,
                "subject": event.subject,
                "text": event.text,
            }
            for event in answer.events
        ],
    }


def event_line(event: dict[str, Any]) -> str:
    """One event as a line: number, time, who noted it, kind, subject, text."""
    when = time_text(event["time"])
    told = f"{event['kind']}  {event['subject']}: {event['text']}"
    return f"{event['number']:>5}  {when}  {event['host']}  {told}"


def doctor_document(answer: cluster_pb2.CheckHostResponse) -> dict[str, Any]:
    """The report; `failed` and `warnings` count its checks."""
    counted = Counter(check.result for check in answer.checks)
    return {
        "host": answer.host,
        "failed": counted["failed"],
        "warnings": counted["warning"],
        "checks": [
            {"name": check.name, "result": check.result, "text": check.text, "remedy": check.remedy}
            for check in answer.checks
        ],
    }


def doctor_table(document: dict[str, Any]) -> RenderableType:
    """The report for people."""
    table = Table(title=f"host {document['host']}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("check", "result", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in document["checks"]:
        table.add_row(check["name"], check["result"], check["text"], check["remedy"])
    verdict = "not ready" if document["failed"] else "ready"
    return Group(table, f"{verdict}; failed: {document['failed']}, warnings: {document['warnings']}")
