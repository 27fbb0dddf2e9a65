"""The far end of `Console`: runs on a host of the network and answers one JSON line for each JSON line.

`{"cli": [...]}` runs clustercli with these arguments; `{"etcd": URL, "body": {...}}` asks etcd's own JSON
gateway, so that a check does not depend on the product. In one process, since a check polls many times a
second.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import urllib.request
from typing import Any
from unittest.mock import patch

from clustercli.main import main as clustercli

ETCD_SECONDS = 2.0


def run_cli(arguments: list[str]) -> dict[str, Any]:
    """Run clustercli as its program does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["clustercli", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            clustercli()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def ask_etcd(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST to the JSON gateway; no answer is code 3, as clustercli's."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ETCD_SECONDS) as answer:
            return {"code": 0, "out": answer.read().decode(), "err": ""}
    except OSError as error:
        return {"code": 3, "out": "", "err": str(error)}


def serve() -> None:
    """Answer until stdin ends."""
    for line in sys.stdin:
        order = json.loads(line)
        answer = run_cli(order["cli"]) if "cli" in order else ask_etcd(order["etcd"], order["body"])
        sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    serve()
