"""The far end of `Console`: runs on a host of the network and answers one JSON line for each JSON line.

`{"cli": [...]}` runs clustercli with these arguments; `{"health": URL, "pki": DIR}` asks etcd itself, with
the certificate in DIR unless that is empty, so that a check does not depend on the product. In one process,
since a check polls many times a second.
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any

from controlplane.base.credentials import CredentialFiles
from tests.support.cli import run_cli

ETCD_SECONDS = 2.0


def answer_cli(arguments: list[str]) -> dict[str, Any]:
    """Run clustercli as its program does."""
    done = run_cli(*arguments)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def ask_etcd(url: str, pki: str) -> dict[str, Any]:
    """GET /health; no answer is code 3, as clustercli's."""
    try:
        with urllib.request.urlopen(url, timeout=ETCD_SECONDS, context=_tls(pki)) as answer:
            return {"code": 0, "out": answer.read().decode(), "err": ""}
    except OSError as error:
        return {"code": 3, "out": "", "err": str(error)}


def _tls(pki: str) -> ssl.SSLContext | None:
    if not pki:
        return None
    files = CredentialFiles.in_directory(Path(pki))
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    return context


def serve() -> None:
    """Answer until stdin ends."""
    replies = sys.stdout  # commands have another in its place while they run
    for line in sys.stdin:
        order = json.loads(line)
        answer = answer_cli(order["cli"]) if "cli" in order else ask_etcd(order["health"], order["pki"])
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
