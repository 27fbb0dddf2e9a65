"""The far end of `Console`: runs on a host of the network and answers one JSON line for each JSON line.

`{"cli": [...]}` runs clustercli with these arguments; `{"health": URL, "pki": DIR}` asks etcd itself, with
the certificate in DIR unless that is empty, so that a check does not depend on the product;
`{"write": HOST:PORT, "times": N, "pki": DIR}` overwrites keys there that are no records. In one process,
since a check polls many times a second.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import urllib.request
from pathlib import Path
from typing import Any

from controlplane.base.credentials import CredentialFiles
from controlplane.base.tls import NewestCredentials
from controlplane.store import kv
from controlplane.store.client import EtcdClient
from tests.support.cli import run_cli

ETCD_SECONDS = 2.0
WRITE_SECONDS = 30.0
_AT_ONCE = 50


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


async def write_keys(endpoint: str, times: int, pki: str) -> dict[str, Any]:
    """Overwrite a few keys again and again, so that raft's log grows."""
    credentials = NewestCredentials(CredentialFiles.in_directory(Path(pki))) if pki else None
    puts = [kv.put(b"/load/%d" % number, b"x") for number in range(_AT_ONCE)]
    async with EtcdClient([endpoint], call_seconds=WRITE_SECONDS, credentials=credentials) as client:
        for _ in range(0, times, _AT_ONCE):
            await asyncio.gather(*(client.txn([], [put]) for put in puts))
    return {"code": 0, "out": "{}", "err": ""}


def _tls(pki: str) -> ssl.SSLContext | None:
    if not pki:
        return None
    files = CredentialFiles.in_directory(Path(pki))
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    return context


def answer_to(order: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    if "cli" in order:
        return answer_cli(order["cli"])
    if "write" in order:
        return asyncio.run(write_keys(order["write"], order["times"], order["pki"]))
    return ask_etcd(order["health"], order["pki"])


def serve() -> None:
    """Answer until stdin ends."""
    replies = sys.stdout  # commands have another in its place while they run
    for line in sys.stdin:
        order = json.loads(line)
        answer = answer_to(order)
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
